"""A run as its page sees it: what was recorded, with the few things that several parts ask for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ftcore.report.curves import as_number
from ftcore.report.numbers import count
from ftcore.spec.report_request import ReportedRun
from ftcore.spec.run_record import Attempt, Line, RunRecord, Totals, attempts, number, summed_phases, totals

TONES = {"finished": "good", "running": "", "failed": "wrong", "preempted": "warn", "stopped": "warn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A set's loss after an update."""

    update: int
    time: float
    loss: float
    """Not finite where it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One run."""

    name: str
    """As it is called on the page; no two runs of a page are called the same."""
    state: str
    why: str
    record: RunRecord
    attempts: list[Attempt]
    totals: Totals
    phase_seconds: dict[str, float]
    """Phase -> seconds, mean over ranks, of all updates together."""
    evaluations: dict[str, list[Evaluated]]
    """Set (and adapter) -> its evaluations by update."""

    @property
    def tone(self) -> str:
        """The colour of its state."""
        return TONES.get(self.state, "soft")

    @property
    def lines(self) -> list[Line]:
        """Of metrics.jsonl."""
        return self.record.updates

    @property
    def world_size(self) -> int:
        """Of the newest attempt."""
        return self.attempts[-1].world_size if self.attempts else 1

    @property
    def on_cpu(self) -> bool:
        """Whether its ranks compute on the host, as far as the run tells."""
        capacity = (self.record.memory or {}).get("capacity")
        if isinstance(capacity, dict) and capacity.get("accelerator"):
            return str(capacity["accelerator"]) == "cpu"
        hosts = (self.record.environment or {}).get("hosts")
        return not any(host.get("accelerators") for host in hosts if isinstance(host, dict)) if isinstance(hosts, list) else True

    @property
    def room_bytes(self) -> float:
        """What a rank can have of its device's memory by memory.json; NaN where that says nothing above 0."""
        capacity = (self.record.memory or {}).get("capacity")
        return number(capacity, "device_bytes") or math.nan if isinstance(capacity, dict) else math.nan

    def spec(self, key: str, default: Any = None) -> Any:
        """The value of a dotted key of the resolved spec."""
        found: Any = self.record.resolved.get("spec")
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return default if found is None else found


def view_of(asked: ReportedRun, record: RunRecord, name: str) -> RunView:
    """The view of a run that was read."""
    launches = attempts(record)
    last = launches[-1].how_ended if launches else "new"
    state = asked.state or last or "not ended"
    return RunView(
        name=name,
        state=state,
        why=asked.why or (launches[-1].reason if launches and last != "finished" else "") or (_last_error(record) if state == "failed" else ""),
        record=record,
        attempts=launches,
        totals=totals(record),
        phase_seconds=summed_phases(record.updates),
        evaluations=_evaluations(record),
    )


def _last_error(record: RunRecord) -> str:
    """What the newest error says first."""
    errors = [event["problems"][0] for event in record.events if event["event"] == "error" and isinstance(event.get("problems"), list) and event["problems"]]
    return str(errors[-1].get("what") or "") if errors and isinstance(errors[-1], Mapping) else ""


def _evaluations(record: RunRecord) -> dict[str, list[Evaluated]]:
    """What was evaluated again after a resume counts once, as it was found last."""
    found: dict[str, dict[int, Evaluated]] = {}
    for event in record.events:
        if event["event"] == "evaluation" and type(event.get("update")) is int:
            update = event["update"]
            scored = Evaluated(update=update, time=number(event, "time"), loss=as_number(event.get("loss")))
            found.setdefault(str(event.get("set", "eval")), {})[update] = scored
    return {name: [scores[update] for update in sorted(scores)] for name, scores in found.items()}


def perplexity(loss: float) -> float:
    """exp(loss); infinity where that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def model_name(view: RunView) -> str:
    """The model, shorter than the spec's text where that is a path or a file of a package."""
    full = str(view.spec("model.model_name_or_path", "unknown model"))
    return full if full.count("/") == 1 and not full.startswith(("/", "package:")) else full.rstrip("/").rpartition("/")[2] or full


def method_name(view: RunView) -> str:
    """Full, LoRA r 16, QLoRA r 16 in 4 bits."""
    kind = str(view.spec("method.type", "full"))
    if kind == "full":
        return "full fine-tuning"
    adapters = view.spec("method.adapters", {})
    if isinstance(adapters, Mapping) and adapters:
        return f"{_method_word(kind)}, {len(adapters)} adapters"
    rank, bits = view.spec("method.r"), view.spec("method.bits")
    return _method_word(kind) + (f" r {rank}" if rank is not None else "") + (f" in {bits} bits" if kind == "qlora" and bits is not None else "")


def _method_word(kind: str) -> str:
    return {"lora": "LoRA", "qlora": "QLoRA", "full": "full fine-tuning"}.get(kind, kind)


def setting(view: RunView) -> str:
    """Ranks, hosts, stage and precision in a few words."""
    hosts = view.record.resolved.get("hosts")
    on = f" on {len(hosts)} hosts" if isinstance(hosts, list) and len(hosts) > 1 else ""
    ranks = "1 rank" if view.world_size == 1 else f"{count(view.world_size)} ranks"
    return f"{ranks}{on} · ZeRO stage {view.spec('zero.stage', '?')} · {view.spec('train.precision', '?')}"


def trained_parameters(view: RunView) -> tuple[int | None, int | None]:
    """(trained, all) parameters, as they were planned."""
    memory = view.record.memory or {}
    return (_whole(memory.get("trained")), _whole(memory.get("parameters")))


def peak_bytes(view: RunView) -> float | None:
    """The most that a rank held, over all ranks whose lines were read."""
    # Each attempt counts from its own start, so the last line of a rank may hold less than one before it.
    return max((number(line, "peak_memory_bytes") for lines in (view.lines, *view.record.ranks.values()) for line in lines), default=0.0) or None


def currencies_of(views: Iterable[RunView]) -> list[str]:
    """Of the runs whose price is known."""
    return list(dict.fromkeys(view.totals.currency for view in views if view.totals.cost is not None))


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None
