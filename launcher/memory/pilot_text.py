"""A pilot's result as text and as pilot.json."""

from __future__ import annotations

from typing import Any

from launcher.memory.accelerators import GIB
from launcher.memory.cost_text import device_hours, forecast_facts, rough_time
from launcher.memory.fit import gib
from launcher.memory.pilot import WARM_UP, PilotResult, measured_items

PILOT_VERSION = 1


def render_pilot(result: PilotResult) -> str:
    """Measured beside expected: memory by item, speed, and what the whole run takes by that."""
    measured, forecast, on_cpu = result.measured, result.forecast, result.capacity.is_shared
    peak = max(measured.peak_bytes)
    what = "resident size, libraries of torch included" if on_cpu else "allocated by torch"
    lines = [
        f"{'':<34}{'measured':>14}{'expected':>14}",
        _line(f"peak memory of a rank ({'CPU' if on_cpu else 'GPU'})", _size(peak), _size(result.expected_bytes), peak / max(1, result.expected_bytes)),
        *(f"  {item.name:<46}{_size(item.bytes):>14}" for item in sorted(measured_items(result.ledger, on_cpu=on_cpu), key=lambda item: -item.bytes)[:8]),
        _line(
            "tokens/s, all ranks",
            f"{measured.tokens_per_s:,.0f}",
            f"{forecast.tokens_per_s:,.0f}",
            measured.tokens_per_s / forecast.tokens_per_s,
        ),
        _line("whole run", rough_time(result.total_s), rough_time(forecast.total_s), result.total_s / forecast.total_s),
        _line("device-hours", device_hours(result.device_hours), device_hours(forecast.device_hours), result.device_hours / forecast.device_hours),
    ]
    if result.price is not None and forecast.price is not None:
        lines.append(f"{'price, ' + forecast.currency:<34}{result.price:>14,.2f}{forecast.price:>14,.2f}")
    lines.append(f"measured: {what}, by rank {', '.join(_size(each) for each in measured.peak_bytes)}; speed of the {_updates(measured.updates - WARM_UP)}")
    lines[-1] += f" after {WARM_UP} to warm up, with micro-steps of {measured.row_tokens:,} tokens at most"
    lines.append(_verdict(result))
    return "\n".join(lines)


def _updates(count: int) -> str:
    return f"{count} updates" if count != 1 else "one update"


def _size(size: float) -> str:
    """Fine enough for the percentage beside it."""
    return gib(size) if size < GIB / 10 else f"{size / GIB:.2f} GiB"


def _line(name: str, measured: str, expected: str, ratio: float) -> str:
    return f"{name:<34}{measured:>14}{expected:>14}   {ratio:.0%} of what was expected"


def _verdict(result: PilotResult) -> str:
    most = f"at the largest micro-step that the spec allows a rank takes {gib(result.most_bytes)}"
    if result.room_bytes is None:
        return f"{most}; how much there is, is not known"
    return f"{most}, and can have {gib(result.room_bytes)} ({result.capacity.device_origin}): {'it fits' if result.fits else 'it does not fit'}"


def pilot_facts(result: PilotResult) -> dict[str, Any]:
    """The content of pilot.json: sizes in bytes, times in seconds."""
    measured, on_cpu = result.measured, result.capacity.is_shared
    return {
        "version": PILOT_VERSION,
        "accelerator": result.forecast.accelerator,
        "measured": {
            "updates": measured.updates,
            "warm_up": WARM_UP,
            "update_s": measured.update_s,
            "tokens_per_s": measured.tokens_per_s,
            "supervised_tokens_per_s": measured.supervised_tokens_per_s,
            "peak_bytes": list(measured.peak_bytes),
            "peak_is": "resident size" if on_cpu else "allocated by torch",
            "row_tokens": measured.row_tokens,
        },
        "expected": {
            "peak_bytes": result.expected_bytes,
            "items": [{"name": item.name, "group": item.group, "bytes": item.bytes} for item in measured_items(result.ledger, on_cpu=on_cpu)],
            "forecast": forecast_facts(result.forecast),
        },
        "run": {
            "total_s": result.total_s,
            "device_hours": result.device_hours,
            "price": result.price,
            "currency": result.forecast.currency,
            "most_bytes": result.most_bytes,
            "room_bytes": result.room_bytes,
            "fits": result.fits,
        },
    }
