"""Which splits `ftlaunch verify-loss` trains: pure functions from what the spec and the rules allow to a list of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ftcore.spec.verification import LeftOut, Leg, Part, Split

SCOPES = ("quick", "default", "all")
STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What splits are made of."""

    world_sizes: tuple[int, ...]
    """Ascending."""
    stage: int
    """The spec's own."""
    budget: int
    """The spec's own micro_batch_tokens."""
    smallest_budget: int
    """The longest sample that the spec allows."""
    layout: str
    """The spec's own."""
    refused: dict[tuple[int, int], str] = field(default_factory=dict)
    """(ranks, stage) -> why the rules refuse it."""

    def stages(self, world_size: int) -> tuple[int, ...]:
        """Those that are allowed on so many ranks."""
        return tuple(stage for stage in STAGES if (world_size, stage) not in self.refused)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The splits, the reference first and its reordered twin second, and what can't be."""

    splits: tuple[Split, ...]
    left_out: tuple[LeftOut, ...]


def choose_splits(ground: Ground, scope: str) -> Chosen:
    """The splits of a scope: quick, default or all. The reference has the fewest ranks, the lowest stage allowed there, and the spec's budget and layout."""
    fewest = ground.world_sizes[0]
    reference = _split(ground, fewest, ground.stages(fewest)[0])
    reordered = replace(reference, name=f"{reference.name}-reordered", reordered=True)
    others = {"quick": _quick, "default": _default, "all": _all}[scope](ground, reference)
    unique = {split.name: split for split in (reference, reordered, *others)}
    return Chosen(splits=tuple(unique.values()), left_out=tuple(_left_out(ground)))


def plan_legs(splits: tuple[Split, ...], updates: int) -> tuple[Leg, ...]:
    """One set of ranks for each world size, ascending, and at the end one more for each that smaller sets go on with.

    In a leg stages ascend, but the reference comes first of all: the others are compared with it.
    """
    half = updates // 2
    reference = splits[0]
    legs: list[Leg] = []
    for size in sorted({split.world_size for split in splits}):
        mine = sorted((split for split in splits if split.world_size == size and split != reference), key=lambda split: split.zero_stage)
        parts = [Part(split=split.name, until=half if split.then_world_size else updates) for split in mine]
        first = [Part(split=reference.name, until=updates)] if size == reference.world_size else []
        earlier = [split for split in splits if split.then_world_size == size and split.world_size < size]
        legs.append(Leg(world_size=size, parts=(*first, *parts, *(Part(split=split.name, until=updates) for split in earlier))))
    for size in sorted({split.then_world_size for split in splits if split.then_world_size and split.then_world_size <= split.world_size}):
        later = [split for split in splits if split.then_world_size == size and split.world_size >= size]
        legs.append(Leg(world_size=size, parts=tuple(Part(split=split.name, until=updates) for split in later)))
    return tuple(legs)


def _quick(ground: Ground, reference: Split) -> list[Split]:
    most = ground.world_sizes[-1]
    own, other = _own_and_other(ground, most)
    return [_split(ground, most, own), _split(ground, most, other, budget="small"), _resumed(reference, most, _farthest(ground, most, reference.zero_stage))]


def _default(ground: Ground, reference: Split) -> list[Split]:
    most = ground.world_sizes[-1]
    middle = ground.world_sizes[min(1, len(ground.world_sizes) - 1)]
    own = _own_and_other(ground, most)[0]
    splits = [_split(ground, reference.world_size, reference.zero_stage, budget="small"), _split(ground, most, own)]
    stages = [stage for stage in ground.stages(middle) if stage not in (0, own)]
    splits += [_split(ground, middle, stage, budget=("large", "small")[index % 2]) for index, stage in enumerate(stages)]
    splits += [_split(ground, most, own, layout="padded")] if ground.layout == "packed" else []
    return [*splits, _resumed(reference, most, _farthest(ground, most, reference.zero_stage))]


def _all(ground: Ground, reference: Split) -> list[Split]:
    layouts = ("packed", "padded") if ground.layout == "packed" else ("padded",)
    most = ground.world_sizes[-1]
    own = _own_and_other(ground, most)[0]
    splits = [
        _split(ground, size, stage, budget=budget, layout=layout)
        for size in ground.world_sizes
        for stage in ground.stages(size)
        for budget in ("own", "small")
        for layout in layouts
    ]
    splits += [_split(ground, most, own, budget="large"), _resumed(reference, most, _farthest(ground, most, reference.zero_stage))]
    # And from many ranks to few.
    return [*splits, _resumed(_split(ground, most, own), reference.world_size, reference.zero_stage)]


def _own_and_other(ground: Ground, world_size: int) -> tuple[int, int]:
    """The spec's stage on so many ranks, or the highest allowed one; and the stage that differs most from it, rather one that shards."""
    stages = ground.stages(world_size)
    own = ground.stage if ground.stage in stages else stages[-1]
    return own, max(stages, key=lambda stage: (stage not in (0, own), abs(stage - own), stage))


def _split(ground: Ground, world_size: int, stage: int, *, budget: str = "own", layout: str = "") -> Split:
    """A small budget is the longest sample's length; where that is the spec's own budget, it is that split."""
    tokens = {"own": ground.budget, "small": ground.smallest_budget, "large": 2 * ground.budget}[budget]
    marks = [budget] if tokens != ground.budget else []
    marks += [layout] if layout and layout != ground.layout else []
    name = "-".join([f"w{world_size}", f"zero{stage}", *marks])
    return Split(name=name, world_size=world_size, zero_stage=stage, micro_batch_tokens=tokens, layout=layout or ground.layout)


def _farthest(ground: Ground, world_size: int, stage: int) -> int:
    """The stage on so many ranks that differs most from `stage`."""
    return max(ground.stages(world_size), key=lambda other: (abs(other - stage), other))


def _resumed(start: Split, world_size: int, stage: int) -> Split:
    """Begun as `start`, gone on with other ranks and stage."""
    return replace(start, name=f"{start.name}-then-w{world_size}-zero{stage}", then_world_size=world_size, then_zero_stage=stage)


def _left_out(ground: Ground) -> list[LeftOut]:
    by_reason: dict[tuple[int, str], list[int]] = {}
    for (size, stage), reason in ground.refused.items():
        by_reason.setdefault((stage, reason), []).append(size)
    found = [LeftOut(name=f"ZeRO stage {stage} on {_ranks(sizes, ground)}", reason=reason) for (stage, reason), sizes in sorted(by_reason.items())]
    if ground.smallest_budget >= ground.budget:
        reason = f"a sample may have {ground.smallest_budget} tokens (data.max_length), and batch.micro_batch_tokens is no larger"
        found.append(LeftOut(name="a smaller micro_batch_tokens", reason=reason))
    if ground.layout != "packed":
        found.append(LeftOut(name="packed", reason="the spec says batch.layout: padded, which is for models that can't keep packed samples apart"))
    return found


def _ranks(sizes: list[int], ground: Ground) -> str:
    return "any number of ranks" if set(sizes) == set(ground.world_sizes) else f"{', '.join(map(str, sorted(sizes)))} ranks"
