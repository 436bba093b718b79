"""What goes with what: one table, from which validation, the plan, warnings and docs/compatibility.md are made.

A combination is refused when an entry of REFUSED matches it, untested when one of UNTESTED does, and works otherwise. "Works" is shown
for every cell of the tables PLANES by tests/ranks/test_compatibility.py; a combination is as good as the worst of its cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

from ftcore.spec.errors import Problem
from ftcore.spec.sections import Spec
from launcher.combination import AXIS, Combination, Value, combination_of

WORKS, REFUSED_WORD, UNTESTED_WORD = "works", "refused", "untested"
SHOWN_BY = "tests/ranks/test_compatibility.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Combinations that have all of these values have one verdict, for one reason."""

    when: dict[str, tuple[Value, ...]]
    """Axis -> values."""
    reason: str
    """`{axis}` stands for the value met."""
    key: str = ""
    """The key of a spec that is wrong; empty: that of the first axis."""

    def matches(self, values: dict[str, Value]) -> bool:
        """Whether `values` (axis -> value, of some axes or all) has what the entry asks for."""
        return all(axis in values and values[axis] in wanted for axis, wanted in self.when.items())

    @property
    def where(self) -> str:
        """The key of a spec that is wrong."""
        return self.key or AXIS[next(iter(self.when))].key


BELOW_3 = (0, 1, 2)
REFUSED = (
    Entry(
        when={"stage": (0,), "precision": ("bf16",)},
        reason="ZeRO stage 0 with bf16 is wrong in DeepSpeed: it takes a real optimizer step while it initialises and accumulates gradients in bf16",
    ),
    Entry(
        when={"stage": (0,), "precision": ("fp16",)},
        reason="ZeRO stage 0 with fp16 is wrong in DeepSpeed: the loss is never scaled but the gradients are unscaled, so that nothing is learned",
    ),
    Entry(
        when={"offload_optimizer": ("cpu", "nvme"), "stage": (0,)},
        reason="offload_optimizer needs stage 1 or higher: stage 0 shards no optimizer state",
    ),
    Entry(
        when={"offload_optimizer": ("nvme",)},
        reason="offload_optimizer: nvme would leave a run without checkpoints: optimizer state on NVMe can't be saved yet",
    ),
    Entry(
        when={"offload_param": ("cpu", "nvme"), "stage": BELOW_3},
        reason="offload_param: {offload_param} needs stage 3, the only one that shards parameters; the stage is {stage}",
    ),
    Entry(
        when={"base": ("int8",), "stage": (3,)},
        reason="8-bit bases can't be partitioned: bitsandbytes puts the whole weight back in each forward",
    ),
    Entry(
        when={"method": ("dora",), "base": ("int8",)},
        reason="DoRA needs the norms of the base's weights, and PEFT's way to them takes from 8-bit layers of bitsandbytes the scales they compute with",
        key="method.use_dora",
    ),
    Entry(
        when={"method": ("dora",), "base": ("nf4", "fp4"), "stage": (3,)},
        reason="DoRA needs the norms of the base's weights, and PEFT can't read them from 4-bit weights that ZeRO has partitioned",
        key="method.use_dora",
    ),
    Entry(
        when={"method": ("dora",), "precision": ("bf16_autocast",), "stage": (3,)},
        reason="with DoRA, bf16_autocast at stage 3 gives other losses than at other stages, and a resumed run is not the unbroken one",
        key="method.use_dora",
    ),
    Entry(
        when={"offload_optimizer": ("cpu", "nvme"), "adapters": ("several",)},
        reason="DeepSpeed's offloaded optimizer steps with the gradients of an update's last backward pass alone, which reaches one adapter",
    ),
    Entry(when={"coalesces": (True,), "stage": (0, 1)}, reason="true is refused here: stages 0 and 1 reduce once an update anyway"),
    Entry(
        when={"coalesces": (True,), "offload_optimizer": ("cpu", "nvme")},
        reason="true is refused here: it was not shown to be right with an offloaded optimizer",
    ),
    Entry(
        when={"collectives": ("zero++",), "stage": BELOW_3},
        reason="ZeRO++ needs stage 3: at stage {stage} DeepSpeed takes its keys and does nothing",
        key="zero.stage",
    ),
    Entry(
        when={"attention": ("flash_attention_2",), "precision": ("fp32", "bf16_autocast")},
        reason="flash_attention_2 computes in 16 bits only, but train.precision is {precision}",
    ),
)
UNTESTED = (
    Entry(when={"offload_param": ("nvme",)}, reason="offload_param: nvme was never run: DeepSpeed's async_io does not build where the tests run"),
    Entry(when={"attention": ("flash_attention_2",)}, reason="flash_attention_2 was never run: it needs an accelerator, and the tests have none"),
    Entry(when={"collectives": ("zero++",)}, reason="ZeRO++ was never run: its kernels need accelerators, and its groups of ranks several hosts"),
)

PLANES = (
    ("method", "base", "stage"),
    ("base", "stage", "precision"),
    ("method", "stage", "precision"),
    ("adapters", "stage"),
    ("adapters", "method"),
    ("adapters", "base"),
    ("adapters", "precision"),
    ("stage", "offload_optimizer", "offload_param"),
    ("adapters", "offload_optimizer"),
    ("method", "offload_optimizer"),
    ("method", "offload_param"),
    ("base", "offload_optimizer"),
    ("base", "stage", "offload_param"),
    ("precision", "offload_optimizer"),
    ("precision", "offload_param"),
    ("optimizer", "stage", "precision"),
    ("optimizer", "stage", "offload_optimizer"),
    ("optimizer", "method"),
    ("optimizer", "base"),
    ("layout", "stage"),
    ("layout", "method"),
    ("layout", "base"),
    ("layout", "precision"),
    ("recomputes", "stage"),
    ("recomputes", "method"),
    ("recomputes", "base"),
    ("recomputes", "precision"),
    ("recomputes", "offload_param"),
    ("coalesces", "stage"),
    ("coalesces", "offload_optimizer"),
    ("coalesces", "offload_param"),
    ("coalesces", "method"),
    ("coalesces", "adapters"),
    ("coalesces", "base"),
    ("coalesces", "precision"),
    ("coalesces", "optimizer"),
    ("attention", "precision"),
    ("collectives", "stage"),
)
"""The tables: the axes that meet in each. Every cell that works is trained and resumed in the tests, as part of some combination."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a combination."""

    word: str
    """works, refused or untested."""
    problems: tuple[Problem, ...] = ()
    """Why it is refused, each with alternatives that are not."""
    warnings: tuple[str, ...] = ()
    """Why it is untested."""

    @property
    def line(self) -> str:
        """For the plan."""
        if self.word == WORKS:
            return f"works: every pair of its parts trains and resumes in {SHOWN_BY}"
        return f"{self.word}: {'; '.join([*(problem.what for problem in self.problems), *self.warnings])}"


def verdict(spec: Spec) -> Verdict:
    """The table's word on a spec, resolved or not."""
    return judge(combination_of(spec))


def judge(combination: Combination) -> Verdict:
    """The table's word on a combination."""
    values = combination.values()
    refusals = [entry for entry in REFUSED if entry.matches(values)]
    warnings = tuple(entry.reason.format(**values) for entry in UNTESTED if entry.matches(values))
    if refusals:
        return Verdict(word=REFUSED_WORD, problems=tuple(problem_of(entry, combination) for entry in refusals), warnings=warnings)
    return Verdict(word=UNTESTED_WORD if warnings else WORKS, warnings=warnings)


def problem_of(entry: Entry, combination: Combination) -> Problem:
    """The mistake that an entry of REFUSED sees in `combination`, with the nearest ways out."""
    return Problem(what=entry.reason.format(**combination.values()), where=entry.where, fix=_propose(alternatives(entry, combination)))


def alternatives(entry: Entry, combination: Combination) -> list[dict[str, Value]]:
    """The smallest changes (axis -> value) that lead out of `entry` to combinations that are not refused, and not untested for a new reason.

    Each changes an axis of the entry, and others only when no single change is enough, since another entry matches too; then one is named.
    """
    values = combination.values()
    met = {axis for other in REFUSED if other.matches(values) for axis in other.when}
    axes = [*entry.when, *(axis for axis in AXIS if axis in met and axis not in entry.when)]
    barred = (*REFUSED, *(other for other in UNTESTED if not other.matches(values)))
    for size in range(1, len(axes) + 1):
        chosen = [names for names in combinations(axes, size) if set(names) & set(entry.when)]
        found = [change for names in chosen for change in _changes(names, combination) if _is_free(values | change, barred)]
        if found:
            return found if size == 1 else found[:1]
    return []


def _changes(axes: tuple[str, ...], combination: Combination) -> Iterator[dict[str, Value]]:
    """Every way to give all of `axes` other values that a spec can be told to have."""
    others = [[value for value, words in AXIS[axis].words.items() if words and value != getattr(combination, axis)] for axis in axes]
    return (dict(zip(axes, values, strict=True)) for values in product(*others))


def _is_free(values: dict[str, Value], barred: tuple[Entry, ...]) -> bool:
    return can_be_said(values) and not any(entry.matches(values) for entry in barred)


def _propose(changes: list[dict[str, Value]]) -> str:
    """`use zero.stage: 1, 2 or 3, or train.precision: fp32`: the changes of an axis together."""
    by_axis: dict[tuple[str, ...], list[str]] = {}
    for change in changes:
        by_axis.setdefault(tuple(change), []).append(" with ".join(AXIS[axis].words[value] for axis, value in change.items()))
    return "use " + ", or ".join(_joined(texts) for texts in by_axis.values())


def _joined(texts: list[str]) -> str:
    """What all begin with (`zero.stage: `) once, then `1, 2 or 3`."""
    key = texts[0].partition(": ")[0] + ": "
    if all(text.startswith(key) for text in texts):
        texts = [texts[0], *(text.removeprefix(key) for text in texts[1:])]
    *most, last = texts
    return f"{', '.join(most)} or {last}" if most else last


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a table."""

    values: dict[str, Value]
    word: str
    entries: tuple[Entry, ...] = ()
    """Those that refuse it, or say that it is untested."""


def cells(plane: tuple[str, ...]) -> Iterator[Cell]:
    """The cells of one of PLANES that a spec can lie in."""
    for chosen in product(*(AXIS[axis].values for axis in plane)):
        values = dict(zip(plane, chosen, strict=True))
        if not can_be_said(values):
            continue
        refusing = tuple(entry for entry in REFUSED if entry.matches(values))
        unknown = tuple(entry for entry in UNTESTED if entry.matches(values))
        word = REFUSED_WORD if refusing else UNTESTED_WORD if unknown else WORKS
        yield Cell(values=values, word=word, entries=refusing or unknown)


def can_be_said(values: dict[str, Value]) -> bool:
    """Whether a spec can have these values, of some axes or all."""
    return values.get("method") != "full" or (values.get("base", "whole") == "whole" and values.get("adapters", "one") == "one")
