"""The ways to run a spec that a recommendation weighs: stage, offload, what is recomputed, bits of the base, tokens of a micro-step."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from itertools import product

from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import MethodSection, Spec, ZeroSection

MOST_SIZES = 8
"""Values of micro_batch_tokens that are looked at: the least, doubled again and again, and an update's whole share of a rank."""
RECOMPUTED = ("none", "every:2", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What a recommendation may change, but for micro_batch_tokens and what is recomputed."""

    stage: int
    offload_optimizer: str
    offload_param: str
    base: str
    """whole, 4 or 8: bits that the base's linear layers are held in."""

    @property
    def label(self) -> str:
        """As the table calls it: `ZeRO-3, optimizer on the host, base in 4 bits`."""
        offloaded = [name for name, where in (("optimizer", self.offload_optimizer), ("weights", self.offload_param)) if where != "none"]
        place = "NVMe" if self.offload_param == "nvme" else "the host"
        parts = [f"ZeRO-{self.stage}"]
        parts += [f"{' and '.join(offloaded)} on {place}"] if offloaded else []
        parts += [f"base in {self.base} bits"] if self.base != "whole" else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to run, complete."""

    way: Way
    recomputed: str
    """train.gradient_checkpointing."""
    micro_batch_tokens: int

    @property
    def label(self) -> str:
        """As the table calls it."""
        again = {"none": "nothing recomputed", "full": "all layers recomputed"}.get(self.recomputed, f"recomputed {self.recomputed}")
        return f"{self.way.label}, {again}, {self.micro_batch_tokens:,} tokens a micro-step"


def way_of(spec: Spec) -> Way:
    """The way a spec goes."""
    base = str(spec.method.bits) if spec.method.type == "qlora" else "whole"
    return Way(stage=spec.zero.stage, offload_optimizer=spec.zero.offload_optimizer, offload_param=spec.zero.offload_param, base=base)


def choice_of(spec: Spec) -> Choice:
    """What a spec chooses."""
    return Choice(way=way_of(spec), recomputed=spec.train.gradient_checkpointing, micro_batch_tokens=spec.batch.micro_batch_tokens)


def ways(spec: Spec, *, quantise: bool) -> list[Way]:
    """Every way that is weighed, the spec's own first: stages 0 to 3, each without and with offload; with `quantise` also on a base in 4 bits.

    A quantised base computes something else, so it is offered to LoRA only; and to a qlora spec the whole base, which it would rather have.
    """
    own = way_of(spec)
    bases = [own.base]
    if spec.method.type in ("lora", "qlora"):
        bases = list(dict.fromkeys(["whole", own.base, *(["4"] if quantise else [])]))
    found = [own]
    for base in bases:
        for stage in range(4):
            optimizers, params = ("none", "cpu") if stage else ("none",), ("none", "cpu") if stage == 3 else ("none",)
            found += [Way(stage=stage, offload_optimizer=each, offload_param=other, base=base) for each, other in product(optimizers, params)]
    return list(dict.fromkeys(found))


def sizes(resolved: ResolvedSpec, rank_tokens: float) -> list[int]:
    """Values of micro_batch_tokens, ascending: from data.max_length, which a sample may have, to what a rank computes in an update."""
    spec = resolved.spec
    least, own = spec.data.max_length, spec.batch.micro_batch_tokens
    most = max(least, 256 * math.ceil(rank_tokens * 1.05 / 256))
    found, size = {least, own, most}, 2 * least
    while size < most and len(found) < MOST_SIZES:
        found.add(size)
        size *= 2
    return sorted(found)


def rules(spec: Spec) -> list[str]:
    """Values of gradient_checkpointing, from the one that computes least again."""
    own = spec.train.gradient_checkpointing
    return [*RECOMPUTED, *([own] if own not in RECOMPUTED else [])]


def apply(resolved: ResolvedSpec, choice: Choice) -> ResolvedSpec:
    """The run as it would be; what follows from the stage (coalescing) follows again, unless the user set it."""
    from launcher.resolve import derived_coalescing

    spec, way = resolved.spec, choice.way
    method = _method(spec.method, way.base)
    nvme = spec.zero.nvme_path if way.offload_param == "nvme" else ""
    zero: ZeroSection = dataclasses.replace(
        spec.zero, stage=way.stage, offload_optimizer=way.offload_optimizer, offload_param=way.offload_param, nvme_path=nvme
    )
    if resolved.sources.get("zero.coalesce_grad_reduction", "derived") == "derived":
        zero = dataclasses.replace(zero, coalesce_grad_reduction=derived_coalescing(zero, method))
    changed = dataclasses.replace(
        spec,
        method=method,
        zero=zero,
        train=dataclasses.replace(spec.train, gradient_checkpointing=choice.recomputed),
        batch=dataclasses.replace(spec.batch, micro_batch_tokens=choice.micro_batch_tokens),
    )
    return dataclasses.replace(resolved, spec=changed)


def _method(method: MethodSection, base: str) -> MethodSection:
    if base == "whole":
        return dataclasses.replace(method, type="lora") if method.type == "qlora" else method
    return dataclasses.replace(method, type="qlora", bits=int(base))


def assignments(spec: Spec, choice: Choice) -> dict[str, str]:
    """Key -> value of everything in which a choice differs from the spec."""
    own, way = choice_of(spec), choice.way
    wanted = {
        "zero.stage": (own.way.stage, way.stage),
        "zero.offload_optimizer": (own.way.offload_optimizer, way.offload_optimizer),
        "zero.offload_param": (own.way.offload_param, way.offload_param),
        "zero.nvme_path": (spec.zero.nvme_path, spec.zero.nvme_path if way.offload_param == "nvme" else ""),
        "method.type": (spec.method.type, spec.method.type if way.base == own.way.base else "lora" if way.base == "whole" else "qlora"),
        "method.bits": (spec.method.bits, spec.method.bits if way.base == "whole" else int(way.base)),
        "train.gradient_checkpointing": (own.recomputed, choice.recomputed),
        "batch.micro_batch_tokens": (own.micro_batch_tokens, choice.micro_batch_tokens),
    }
    return {key: str(after) for key, (before, after) in wanted.items() if before != after}


def as_options(changes: dict[str, str]) -> str:
    """Changes as options of the command line, `--zero 2 --set key=value`; empty without any."""
    words = [f"--zero {value}" if key == "zero.stage" else f"--set {key}={value}" for key, value in changes.items()]
    return " ".join(words)
