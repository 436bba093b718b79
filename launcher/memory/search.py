"""The search behind a recommendation: for each way to run, the fastest of its choices that fits, with as few ledgers as that takes."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import Spec
from launcher.combinations.verdict import REFUSED_WORD, UNTESTED_WORD, WORKS, verdict
from launcher.memory.accelerators import Accelerator
from launcher.memory.capacity import Capacity
from launcher.memory.choices import Choice, Way, apply, assignments, rules, sizes
from launcher.memory.cost import Forecast, forecast_of, run_data
from launcher.memory.fit import Shortage, gib, shortages
from launcher.memory.items import Ledger
from launcher.memory.ledger import build_ledger
from launcher.memory.shape import ModelShape
from launcher.memory.work import cut_update

TIE = 1.02
"""Times that differ by less than about this factor are taken as equal: the model of time is no finer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A way to run that fits and leaves the margin."""

    choice: Choice
    changes: dict[str, str]
    """Key -> value, over the spec; empty: the spec as it is."""
    ledger: Ledger
    forecast: Forecast
    free_share: float
    """Of a rank's device memory."""
    untested: str = ""
    """Why the combination counts as untested; empty: it is tested."""


def rank(option: Option, spec: Spec) -> tuple[int, int, int, int, int]:
    """What decides between two options, smaller first: the base kept whole if the spec does, time, changes to the spec, recomputing, memory."""
    choice = option.choice
    return (*_speed(choice, option.forecast, spec), len(option.changes), int(choice.recomputed != "none"), option.ledger.device_peak_bytes)


def _speed(choice: Choice, forecast: Forecast, spec: Spec) -> tuple[int, int]:
    is_coarser = int(choice.way.base != "whole" and spec.method.type != "qlora")
    return is_coarser, round(math.log(max(forecast.total_s, 1e-9)) / math.log(TIE))


class Search:
    """Judges choices for one spec, model and machine; each ledger is built once."""

    def __init__(self, resolved: ResolvedSpec, shape: ModelShape, capacity: Capacity, accelerator: Accelerator) -> None:
        self._resolved, self._shape, self._accelerator = resolved, shape, accelerator
        # What is on disk is the same whatever is chosen.
        self._capacity = dataclasses.replace(capacity, disk_bytes=None)
        self._data = run_data(resolved)
        self._sizes = sizes(resolved, cut_update(resolved.spec, resolved.world_size, self._data.train).rank_tokens)
        self._judged: dict[Choice, tuple[Ledger, list[Shortage]]] = {}

    def lacks(self, choice: Choice) -> list[Shortage]:
        """What a choice is short of."""
        return self._judge(choice)[1]

    def best_of(self, way: Way) -> tuple[Option | None, str]:
        """The fastest option of one way that fits; else what the leanest of its choices lacks."""
        spec = self._resolved.spec
        best: Option | None = None
        lacking = ""
        for rule in rules(spec):
            start = Choice(way=way, recomputed=rule, micro_batch_tokens=self._sizes[0])
            word = verdict(apply(self._resolved, start).spec)
            if word.word == REFUSED_WORD or (word.word == UNTESTED_WORD and verdict(spec).word == WORKS):
                lacking = lacking or "; ".join(dict.fromkeys([*(problem.what for problem in word.problems), *word.warnings]))
                continue
            if best is not None and self._hope(start) >= _speed(best.choice, best.forecast, spec):
                # Even with the largest micro-steps it would not be faster.
                continue
            found, short = self._largest(start)
            if found is None:
                lacking = describe(short)
            elif best is None or rank(found, spec) < rank(best, spec):
                best = dataclasses.replace(found, untested="; ".join(word.warnings))
        return best, lacking

    def _hope(self, start: Choice) -> tuple[int, int]:
        """The speed that a way and rule would have without a bound on memory."""
        choice = dataclasses.replace(start, micro_batch_tokens=self._sizes[-1])
        return _speed(choice, self._forecast(choice), self._resolved.spec)

    def _largest(self, start: Choice) -> tuple[Option | None, list[Shortage]]:
        """The fastest size of micro-step that fits, for one way and rule; without one, what the smallest lacks. More tokens take more memory."""
        choices = [dataclasses.replace(start, micro_batch_tokens=size) for size in self._sizes]
        short = self.lacks(choices[0])
        if short:
            return None, short
        fitting, above = 0, len(choices)
        middle = above - 1  # where memory is no matter, this is the only other look
        while above - fitting > 1:
            if self.lacks(choices[middle]):
                above = middle
            else:
                fitting = middle
            middle = (fitting + above) // 2
        options = [
            (*_speed(choice, self._forecast(choice), self._resolved.spec), len(self._changes(choice)), number)
            for number, choice in enumerate(choices[: fitting + 1])
        ]
        for *_, number in sorted(options):
            if not self.lacks(choices[number]):
                return self._option(choices[number]), []
        return None, short

    def _option(self, choice: Choice) -> Option:
        ledger, _ = self._judge(choice)
        return Option(
            choice=choice,
            changes=self._changes(choice),
            ledger=ledger,
            forecast=self._forecast(choice),
            free_share=1 - ledger.device_peak_bytes / (self._capacity.device_bytes or 1),
        )

    def _changes(self, choice: Choice) -> dict[str, str]:
        return assignments(self._resolved.spec, choice)

    def _forecast(self, choice: Choice) -> Forecast:
        # As many parameters are trained whatever is chosen.
        ledger = next(iter(self._judged.values()), None) or self._judge(choice)
        return forecast_of(apply(self._resolved, choice), self._shape, ledger[0].trained, self._accelerator, self._data)

    def _judge(self, choice: Choice) -> tuple[Ledger, list[Shortage]]:
        if choice not in self._judged:
            candidate = apply(self._resolved, choice)
            ledger = build_ledger(candidate, self._shape, on_cpu=self._capacity.is_shared)
            self._judged[choice] = ledger, shortages(candidate, ledger, self._capacity)
        return self._judged[choice]


def describe(found: list[Shortage]) -> str:
    """What is short, as in `4.1 GiB over on rank 0, activations 61 %`."""
    parts = []
    for each in found:
        if each.place == "device" and each.is_error:
            parts.append(f"{gib(each.over_bytes)} over on rank 0, {each.items}")
        elif each.place == "device":
            parts.append(f"leaves {-each.over_bytes / each.there_bytes:.1%} of rank 0's memory free, less than the margin; {each.items}")
        else:
            over = f"{gib(each.over_bytes)} over" if each.is_error else f"{each.needed_bytes / each.there_bytes:.0%} used"
            parts.append(f"main memory of the host: {over}, {each.items}")
    return "; ".join(parts)
