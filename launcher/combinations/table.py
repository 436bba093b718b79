"""The table of combinations: what is refused, what was never run, and which axes meet in the tables that tests go through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from launcher.combinations.combination import AXIS, OWN, Combination, Value
from launcher.rules.precision import DTYPES

WORKS, REFUSED_WORD, UNTESTED_WORD = "works", "refused", "untested"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Combinations that have all of these values have one verdict, for one reason."""

    when: dict[str, tuple[Value, ...]]
    """Axis -> values."""
    reason: str
    """`{axis}` stands for the value met."""
    key: str = ""
    """The key of a spec that is wrong; empty: that of the first axis."""
    by_key: bool = False
    """Validation says it of each key by itself, in launcher/ds_json/rules.py."""

    def matches(self, values: dict[str, Value]) -> bool:
        """Whether `values` (axis -> value, of some axes or all) has what the entry asks for."""
        return all(axis in values and values[axis] in wanted for axis, wanted in self.when.items())

    @property
    def where(self) -> str:
        """The key of a spec that is wrong."""
        return self.key or AXIS[next(iter(self.when))].key


BELOW_3 = (0, 1, 2)
RUINED = "packed weights stored as {{storage}} are ruined: with train.precision {{precision}} DeepSpeed casts all floats to {held}"
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
    Entry(when={"storage": ("bfloat16", "float16"), "precision": ("fp32", "bf16_autocast")}, reason=RUINED.format(held="float32")),
    Entry(when={"storage": ("float16", "float32"), "precision": ("bf16",)}, reason=RUINED.format(held="bfloat16")),
    Entry(when={"storage": ("bfloat16", "float32"), "precision": ("fp16",)}, reason=RUINED.format(held="float16")),
    Entry(
        when={"compute": ("float16",), "precision": ("fp32", "bf16", "bf16_autocast")},
        reason="gradients through float16 layers vanish without a loss scale, which train.precision {precision} does not have",
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
        when={"offload_optimizer": ("cpu", "nvme"), "adapters": ("several",), "stage": (2, 3)},
        reason="DeepSpeed's offloaded optimizer steps with the gradients of an update's last backward pass alone, which reaches one adapter",
    ),
    Entry(
        when={"optimizer": ("adafactor",), "stage": (1, 2, 3)},
        reason="adafactor keeps sums over the rows and columns of whole matrices, and ZeRO stages 1-3 hand it flat slices: its result would depend "
        "on the number of ranks",
    ),
    Entry(when={"coalesces": (True,), "stage": (0, 1)}, reason="true is refused here: stages 0 and 1 reduce once an update anyway"),
    Entry(
        when={"collectives": ("zero++",), "stage": BELOW_3},
        reason="ZeRO++ needs stage 3: at stage {stage} DeepSpeed takes its keys and does nothing",
        by_key=True,
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
    ("adapters", "method"),
    ("adapters", "base"),
    ("adapters", "precision"),
    ("stage", "offload_optimizer", "offload_param"),
    ("adapters", "stage", "offload_optimizer"),
    ("storage", "precision"),
    ("storage", "stage"),
    ("storage", "base"),
    ("storage", "offload_param"),
    ("compute", "precision"),
    ("compute", "stage"),
    ("compute", "storage"),
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
    ("coalesces", "stage", "offload_optimizer"),
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
        if can_be_said(values):
            refusing = _refusing(values)
            unknown = tuple(entry for entry in UNTESTED if entry.matches(values))
            yield Cell(values=values, word=REFUSED_WORD if refusing else UNTESTED_WORD if unknown else WORKS, entries=refusing or unknown)


def _refusing(values: dict[str, Value]) -> tuple[Entry, ...]:
    """The entries that refuse some axes' values whatever the others are: one that matches, or several that leave the others no choice."""
    whole = list(completions(values))
    matching = [tuple(entry for entry in REFUSED if entry.matches(each)) for each in whole]
    itself = tuple(entry for entry in REFUSED if entry.matches(values))
    if itself or not all(matching):
        return itself
    return tuple(entry for entry in REFUSED if any(entry in found for found in matching))


def completions(values: dict[str, Value]) -> Iterator[dict[str, Value]]:
    """Combinations that have these values of some axes: in every stage and precision, with what they need of method and base, and else the plainest."""
    plain = Combination().values()
    for method, base, stage, precision in product(("full", "lora"), ("whole", "nf4"), AXIS["stage"].values, AXIS["precision"].values):
        whole = plain | {"method": method, "base": base, "stage": stage, "precision": precision} | values
        if can_be_said(whole):
            yield whole


def can_be_said(values: dict[str, Value]) -> bool:
    """Whether a spec can have these values, of some axes or all: full has no adapters and no quantised base, and types of 4 bits need a base in them."""
    of_four_bits = values.get("storage", "uint8") != "uint8" or values.get("compute", OWN) != OWN
    if of_four_bits and (values.get("base", "nf4") not in ("nf4", "fp4") or values.get("method") == "full"):
        return False
    if values.get("compute") == _own_type(values):
        return False
    return values.get("method") != "full" or (values.get("base", "whole") == "whole" and values.get("adapters", "one") == "one")


def with_own_type(values: dict[str, Value]) -> dict[str, Value]:
    """The values, with the type of 4-bit products called the precision's own where it is that one."""
    return values | {"compute": OWN} if values.get("compute") == _own_type(values) else values


def _own_type(values: dict[str, Value]) -> Value:
    """The type that is the precision's own, so that giving it changes nothing."""
    return DTYPES[str(values["precision"])] if "precision" in values else ""
