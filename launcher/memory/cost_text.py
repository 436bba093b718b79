"""A forecast of time and cost as text and as JSON-ready values."""

from __future__ import annotations

from launcher.memory.cost import Forecast


def rough_time(seconds: float) -> str:
    """Seconds as people say them: 45 s, 12 min, 3 h 20 min, 2 d 5 h."""
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h"


def device_hours(hours: float) -> str:
    """Device-hours to three digits, in full from a hundred on: 0.0136, 1.36, 1,234."""
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def amount(number: float) -> str:
    """An amount of money without its currency: 12,345, 1.23, and below a tenth two digits, so that no small price is 0.00."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:,.2f}" if number >= 0.1 or number == 0 else f"{number:.2g}"


def spent(hours: float, cost: float | None, currency: str) -> str:
    """What a run took: `0.0218 device-hours, 0.044 EUR`; without a price (None) the hours alone."""
    return f"{device_hours(hours)} device-hours" + ("" if cost is None else f", {amount(cost)} {currency}")


def _flops(number: float) -> str:
    for unit, size in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number / 1e6:.3g} MFLOP"


def _size(number: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number / 1e3:.3g} kB"


def render_forecast(forecast: Forecast) -> str:
    """The forecast as `ftlaunch plan` prints it: a line a quantity, then what was assumed."""
    update, work, traffic = forecast.update, forecast.work, forecast.traffic
    parts = {
        "computing": update.compute_s + update.memory_s,
        "launching kernels": update.launch_s,
        "communication": update.communication_s,
        "offload": update.offload_s,
    }
    split = ", ".join(f"{name} {seconds / update.total_s:.0%}" for name, seconds in parts.items() if seconds >= 0.005 * update.total_s)
    moved = traffic.to_host_bytes + traffic.from_host_bytes
    steps = f"{forecast.portion.micro_steps} micro-step{'s' if forecast.portion.micro_steps > 1 else ''}"
    rows = [
        ("updates", f"{forecast.updates:,} of {forecast.portion.samples:,.0f} samples, {steps} on each of {forecast.ranks} ranks"),
        ("tokens", f"{forecast.portion.tokens:,.0f} an update, {forecast.lengths.supervised_share:.0%} supervised"),
        ("computation", f"{_flops(work.matmul_flops + work.attention_flops)} an update and rank"),
        ("communication", f"{_size(traffic.collective_bytes)} an update" if traffic.messages else ""),
        ("offload", f"{_size(moved)} an update and rank between accelerator and host" if moved else ""),
        ("an update", f"{rough_time(update.total_s)} on {forecast.accelerator}: {split}"),
        ("speed", f"{forecast.tokens_per_s:,.0f} tokens/s, {update.mfu:.0%} of the data sheet's FLOP/s (MFU)"),
        ("evaluations", rough_time(forecast.evaluation_s) if forecast.evaluation_s else ""),
        ("whole run", f"{rough_time(forecast.total_s)}, {device_hours(forecast.device_hours)} device-hours"),
        ("price", _price(forecast)),
    ]
    lines = [f"{name + ':':<15}{text}" for name, text in rows if text]
    return "\n".join([*lines, *(f"assumed: {note}" for note in forecast.notes)])


def _price(forecast: Forecast) -> str:
    if forecast.price is None or forecast.price_per_million is None:
        return ""
    return f"{forecast.price:,.2f} {forecast.currency}, {forecast.price_per_million:,.2f} {forecast.currency} a million supervised tokens"


def forecast_facts(forecast: Forecast) -> dict[str, object]:
    """The forecast as JSON-ready values, times in seconds and sizes in bytes."""
    update, work, traffic = forecast.update, forecast.work, forecast.traffic
    return {
        "accelerator": forecast.accelerator,
        "ranks": forecast.ranks,
        "updates": forecast.updates,
        "samples_an_update": forecast.portion.samples,
        "micro_steps": forecast.portion.micro_steps,
        "tokens_an_update": forecast.portion.tokens,
        "supervised_tokens": forecast.supervised_tokens,
        "matmul_flops": work.matmul_flops,
        "attention_flops": work.attention_flops,
        "collective_bytes": traffic.collective_bytes,
        "to_host_bytes": traffic.to_host_bytes,
        "from_host_bytes": traffic.from_host_bytes,
        "nvme_bytes": traffic.nvme_bytes,
        "update_s": update.total_s,
        "compute_s": update.compute_s,
        "memory_s": update.memory_s,
        "launch_s": update.launch_s,
        "communication_s": update.communication_s,
        "offload_s": update.offload_s,
        "mfu": update.mfu,
        "tokens_per_s": forecast.tokens_per_s,
        "evaluation_s": forecast.evaluation_s,
        "total_s": forecast.total_s,
        "device_hours": forecast.device_hours,
        "price": forecast.price,
        "currency": forecast.currency,
        "price_per_million_supervised_tokens": forecast.price_per_million,
        "lengths": forecast.lengths.origin,
        "notes": list(forecast.notes),
    }
