"""A recommendation as text and as JSON-ready values."""

from __future__ import annotations

from typing import Any

from launcher.memory.choices import as_options
from launcher.memory.cost_text import forecast_facts, rough_time
from launcher.memory.fit import gib
from launcher.memory.recommend import Recommendation
from launcher.memory.search import Option

SHOWN = 5
"""Options that are printed; the JSON has all."""


def render_recommendation(found: Recommendation) -> str:
    """The spec as it stands, then ranked options with what selects each, then what the other ways lack."""
    capacity = found.capacity
    name = capacity.accelerator.name if capacity.accelerator is not None else "unknown"
    room = gib(capacity.device_bytes or 0)
    share = "a rank's share of the host's memory" if capacity.is_shared else "for tensors on each"
    lines = [f"accelerator:   {name} ({capacity.device_origin}), {room} {share}, of which {found.margin:.0%} is to stay free"]
    lines += [f"the spec:      {found.own.label}: {_own(found)}"]
    if not found.options:
        lines += ["", f"nothing that was weighed fits. Use accelerators with more memory or more of them, {_other_ways(found)}."]
    for number, option in enumerate(found.options[:SHOWN], start=1):
        lines += ["", *_option_lines(number, option, found)]
    if len(found.options) > SHOWN:
        lines += ["", f"{len(found.options) - SHOWN} more fit and are slower: --json lists them"]
    if found.rejected:
        width = max(len(each.label) for each in found.rejected)
        lines += ["", "not offered:", *(f"  {each.label:<{width}}  {each.why}" for each in found.rejected)]
    return "\n".join(lines)


def _other_ways(found: Recommendation) -> str:
    """What to change that a recommendation leaves alone."""
    smaller = "a smaller model, or a smaller data.max_length"
    return f"another method (method.type: lora or qlora), {smaller}" if found.trains_all else smaller


def _own(found: Recommendation) -> str:
    if not found.own_shortages:
        return "fits"
    return "; ".join(each.what for each in found.own_shortages)


def _option_lines(number: int, option: Option, found: Recommendation) -> list[str]:
    forecast = option.forecast
    head = f"{number}. {option.choice.label}"
    price = f", {forecast.price:,.2f} {forecast.currency}" if forecast.price is not None else ""
    peak = gib(option.ledger.device_peak_bytes)
    facts = f"{rough_time(forecast.total_s)} for the run{price}, {forecast.tokens_per_s:,.0f} tokens/s; {peak} on a rank, {option.free_share:.0%} free"
    beside = "" if found.capacity.is_shared else f"; main memory: {gib(max(option.ledger.host_bytes.values()))} on a host"
    lines = [head, f"   {facts}{beside}", f"   {reasons(option, found)}"]
    if option.untested:
        lines.append(f"   untested: {option.untested}")
    lines.append(f"   select it: {as_options(option.changes)}" if option.changes else "   this is the spec as it is")
    return lines


def reasons(option: Option, found: Recommendation) -> str:
    """Why an option stands where it does, in words."""
    best, update = found.options[0], option.forecast.update
    ratio = option.forecast.total_s / best.forecast.total_s
    costs = {
        "communication": update.communication_s,
        "offload": update.offload_s,
        "launching kernels": update.launch_s,
    }
    largest = max(costs, key=lambda name: costs[name])
    share = costs[largest] / update.total_s
    spent = f"{largest} takes {share:.0%} of an update" if share >= 0.02 else "nearly all of an update is computing"
    if option is best:
        lead = "the only way that fits" if len(found.options) == 1 else "the fastest that fits and leaves the margin"
    elif ratio < 1.02:
        lead = "as fast as the first, but further from the spec or with less memory free"
        if _is_coarser(option, best):
            lead = "as fast as the first, with the base in fewer bits"
    elif ratio < 1:
        lead = f"{1 / ratio:.2f} times as fast as the first"
    else:
        lead = f"{ratio:.2f} times as long as the first"
    if ratio < 0.98 and _is_coarser(option, best):
        lead = f"{1 / ratio:.2f} times as fast as the first, but with the base in fewer bits, which is another computation"
    again = "" if option.choice.recomputed == "none" else "; layers are computed a second time to save their activations"
    return f"{lead}; {spent}{again}"


def _is_coarser(option: Option, best: Option) -> bool:
    return option.choice.way.base != "whole" and best.choice.way.base == "whole"


def recommendation_facts(found: Recommendation) -> dict[str, Any]:
    """JSON-ready: options best first with their changes, memory and forecast; what was rejected and why."""
    return {
        "accelerator": found.capacity.accelerator.name if found.capacity.accelerator is not None else None,
        "device_bytes": found.capacity.device_bytes,
        "margin": found.margin,
        "spec": {"label": found.own.label, "lacks": [each.what for each in found.own_shortages]},
        "options": [
            {
                "label": option.choice.label,
                "changes": option.changes,
                "select": as_options(option.changes),
                "device_peak_bytes": option.ledger.device_peak_bytes,
                "free_share": option.free_share,
                "host_bytes": option.ledger.host_bytes,
                "reasons": reasons(option, found),
                "untested": option.untested,
                "forecast": forecast_facts(option.forecast),
            }
            for option in found.options
        ],
        "rejected": [{"label": each.label, "why": each.why} for each in found.rejected],
    }
