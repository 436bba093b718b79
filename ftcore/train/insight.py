"""What the diagnostics are told while a run trains, and where their findings go: metrics.jsonl, events.jsonl and the terminal."""

from __future__ import annotations

from typing import Any

from ftcore.attribution.told import ToldPhases
from ftcore.diagnostics.findings import Finding, Observation, RunFacts
from ftcore.diagnostics.layer_norms import layer_gradient_norms
from ftcore.diagnostics.loss_watch import LossWatch
from ftcore.diagnostics.memory_watch import MemoryWatch
from ftcore.diagnostics.rank_report import write_rank_hint
from ftcore.diagnostics.slow_rank import SlowRankWatch
from ftcore.engine import Engine
from ftcore.metrics.writer import record_event
from ftcore.spec.events import emit
from ftcore.spec.run_dir import RunDir
from ftcore.spec.schedule_lengths import warmup_updates
from ftcore.spec.sections import Spec
from ftcore.train.clip import was_clipped
from ftcore.train.step import ClipGroups


class Insight:
    """Feeds the watches of one rank. Between logs it does nothing, but for the updates whose layer norms are wanted."""

    def __init__(self, engine: Engine, spec: Spec, run_dir: RunDir, *, samples_an_update: int, total_updates: int) -> None:
        self._engine, self._spec, self._run_dir = engine, spec, run_dir
        facts = RunFacts(
            max_grad_norm=spec.optimizer.max_grad_norm,
            learning_rate=spec.optimizer.learning_rate,
            warmup_updates=warmup_updates(spec.schedule, total_updates),
            total_updates=total_updates,
            global_batch_size=samples_an_update,
        )
        self._losses, self._memory, self._slow_rank = LossWatch(facts), MemoryWatch(), SlowRankWatch()
        self._extra: dict[str, Any] = {}

    def before_step(self, update: int) -> None:
        """Between the last backward and the step of the update numbered from 1; every rank calls it, for one collective where norms are due."""
        every = self._spec.logging.layer_grad_norm_steps
        if every and update % every == 0:
            self._extra["layer_grad_norms"] = layer_gradient_norms(self._engine)

    def extra(self) -> dict[str, Any]:
        """Fields for the update's line of metrics.jsonl, handed over once."""
        extra, self._extra = self._extra, {}
        scale = self._engine.loss_scale()
        return extra if scale is None else {**extra, "loss_scale": scale}

    def observe(self, record: dict[str, Any], longest: tuple[int, ...], groups: ClipGroups | None) -> None:
        """A logged update and its longest samples; what is found goes to events.jsonl and the terminal."""
        grown = self._memory.sample(int(record["update"]))
        findings: list[Finding] = [grown] if grown is not None else []
        if record["loss"] is not None and self._engine.ranks.is_first:
            norm = float(record["grad_norm"]) if record["grad_norm"] is not None else float("nan")
            # A record holds what is not finite as text.
            norms = [float(each) for each in record.get("group_norms", {"": norm}).values()]
            findings = findings + self._losses.feed(
                Observation(
                    update=int(record["update"]),
                    loss=float(record["loss"]),
                    grad_norm=norm,
                    learning_rate=float(record["learning_rate"]),
                    clipped=was_clipped(norms, groups, self._spec.optimizer.max_grad_norm),
                    loss_scale=record.get("loss_scale"),
                    samples=longest,
                )
            )
        self._tell(findings)

    def observe_phases(self, update: int, told: ToldPhases | None) -> None:
        """What the ranks told of the stretch that ended with an update; None where nothing is measured."""
        if told is not None and self._engine.ranks.is_first:
            self._tell(self._slow_rank.feed(update, told))

    def _tell(self, findings: list[Finding]) -> None:
        for finding in findings:
            record_event(self._run_dir, "finding", **{"rank": self._engine.ranks.rank, **finding.to_record()})
            emit("note", text=f"{finding.kind} at update {finding.update}: {finding.text()}")

    def finish(self) -> None:
        """After the last update; every rank calls it."""
        if self._spec.method.type != "full":
            write_rank_hint(self._run_dir, self._engine)
