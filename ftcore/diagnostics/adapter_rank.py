"""How much of its rank a LoRA adapter uses: the singular values of B·A, found through matrices of r x r.

Axes: r rank, I and O a module's inputs and outputs. Tensors are named as PEFT names them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

ENERGY = 0.99
"""Share of the sum of squared singular values that the kept ones must hold."""
SHARE_OF_MODULES = 0.9
"""Share of the modules that a smaller rank must serve."""
SATURATED = 0.9
"""Share of its rank that a module uses when it may need more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHint:
    """What one module's update W += scaling * B·A is made of."""

    r: int
    rank_99: int
    """Singular values that hold 99 % of the energy; 0 when B·A is zero."""
    entropy_rank: float
    """exp of the entropy of the singular values as shares of their sum (Roy and Vetterli, The effective rank, 2007)."""
    largest: float
    """Largest singular value, times scaling."""


@dataclass(frozen=True, slots=True)
class Factor:
    """What the name of an adapter's tensor says."""

    module: str
    adapter: str
    side: str
    """A or B."""


def rank_hint(down_rI: torch.Tensor, up_Or: torch.Tensor, scaling: float) -> RankHint:
    """The effective rank of `scaling * up_Or @ down_rI`, without ever forming it: two thin QRs and one r x r SVD.

    Convolutions come with their window's axes behind. Raises ValueError when the two don't fit together or hold a value that is not finite.
    """
    down, up = down_rI.flatten(1).double(), up_Or.flatten(1).double()
    rank = down.shape[0]
    if up.shape[1] != rank:
        raise ValueError(f"lora_A has rank {rank}, lora_B {up.shape[1]}")
    if not (torch.isfinite(down).all() and torch.isfinite(up).all()):
        raise ValueError("the adapter holds a value that is not finite")
    core_rr = torch.linalg.qr(up, mode="r").R @ torch.linalg.qr(down.T, mode="r").R.T
    values = torch.linalg.svdvals(core_rr)
    total = float(values.sum())
    if total == 0.0:
        return RankHint(r=rank, rank_99=0, entropy_rank=0.0, largest=0.0)
    energy = values.square().cumsum(0)
    needed = int((energy < ENERGY * energy[-1]).sum()) + 1
    shares = [value / total for value in values.tolist() if value > 0]
    entropy = -sum(share * math.log(share) for share in shares)
    return RankHint(r=rank, rank_99=needed, entropy_rank=math.exp(entropy), largest=float(values[0]) * abs(scaling))


def factor_of(name: str) -> Factor | None:
    """Module, adapter and side of a parameter of a PEFT model, or of a file that PEFT saved, where the adapter's name is missing; None for others.

    base.q_proj.lora_A.default.weight, base.q_proj.lora_A.weight, base.embed_tokens.lora_embedding_A.default
    """
    for mark, side in ((".lora_A", "A"), (".lora_B", "B"), (".lora_embedding_A", "A"), (".lora_embedding_B", "B")):
        module, found, rest = name.rpartition(mark)
        if found and rest[:1] in ("", "."):
            return Factor(module, rest.removesuffix(".weight").removeprefix(".") or "default", side)
    return None


def adapter_spectra(named: Iterable[tuple[str, torch.Tensor]], scalings: Mapping[tuple[str, str], float]) -> dict[str, dict[str, RankHint]]:
    """Adapter -> module -> hint, of (name, tensor) pairs; at most one side of a module is held while its other side has not come.

    `scalings` gives the factor of B·A by (adapter, module), 1 where it says nothing. Raises ValueError naming a module that lacks one side.
    """
    waiting: dict[tuple[str, str], tuple[str, torch.Tensor]] = {}
    spectra: dict[str, dict[str, RankHint]] = {}
    for name, tensor in named:
        factor = factor_of(name)
        if factor is None:
            continue
        key = (factor.adapter, factor.module)
        if key not in waiting:
            waiting[key] = (factor.side, tensor)
            continue
        sides = dict([waiting.pop(key), (factor.side, tensor)])
        spectra.setdefault(factor.adapter, {})[factor.module] = rank_hint(sides["A"], sides["B"], scalings.get(key, 1.0))
    if waiting:
        raise ValueError(f"one side of B·A is missing: {', '.join(sorted(module for _, module in waiting))}")
    return spectra


def summary(hints: Mapping[str, RankHint]) -> str:
    """One line: what rank the modules of one adapter need, and what to try."""
    rank = max((hint.r for hint in hints.values()), default=0)
    needed = sorted(hint.rank_99 for hint in hints.values() if hint.rank_99)
    if not needed:
        return f"rank {rank}: the adapter changes nothing, B·A is zero in all of its {len(hints)} modules"
    most = needed[math.ceil(SHARE_OF_MODULES * len(needed)) - 1]
    told = f"rank {rank}: {SHARE_OF_MODULES:.0%} of modules need <= {most} for {ENERGY:.0%} of the energy"
    smaller = 1 << (most - 1).bit_length()
    if smaller <= rank / 2:
        return f"{told}: r {smaller} would do"
    full = sum(hint.rank_99 >= SATURATED * hint.r for hint in hints.values())
    if full >= len(hints) / 2:
        return f"{told}; {full} of {len(hints)} are saturated: raise r to {2 * rank} and compare the evaluation"
    return f"{told}: r {rank} fits"


def to_record(spectra: Mapping[str, Mapping[str, RankHint]]) -> dict[str, Any]:
    """What adapter_rank.json holds."""
    return {adapter: {"summary": summary(hints), "modules": dict(_modules(hints))} for adapter, hints in spectra.items()}


def _modules(hints: Mapping[str, RankHint]) -> Iterator[tuple[str, dict[str, float]]]:
    for module, hint in hints.items():
        yield module, {"r": hint.r, "rank_99": hint.rank_99, "entropy_rank": round(hint.entropy_rank, 2), "largest": hint.largest}
