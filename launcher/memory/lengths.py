"""How long the samples of a data set are: as the last preparation counted them, else assumed from the file's size and the spec's limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.lengths import StoredLengths, file_state, lengths_path, read_lengths
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import DataSet, TrainingSet
from launcher.memory.data_guess import guess


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLengths:
    """The samples of a set, for estimates of time."""

    samples: int
    tokens: float
    supervised_tokens: float
    squares: float
    """Sum of length²."""
    longest: int
    histogram: dict[int, int]
    """Upper bound of a bin -> samples; empty: not known."""
    origin: str
    """How this is known, in words."""
    is_assumed: bool
    """Not counted but assumed."""

    @property
    def mean(self) -> float:
        """Tokens of a sample, on average."""
        return self.tokens / max(1, self.samples)

    @property
    def seen(self) -> float:
        """Σ length² / Σ length: twice what a token attends to on average under a causal mask."""
        return self.squares / max(1.0, self.tokens)

    @property
    def supervised_share(self) -> float:
        """Tokens that count in the loss over all tokens."""
        return self.supervised_tokens / max(1.0, self.tokens)

    def bins_over(self, budget: int) -> float:
        """The share of the samples that are longer than half of `budget`: each takes a micro-step of its own."""
        if not self.histogram or not self.samples:
            return 1.0 if 2 * self.mean > budget else 0.0
        return sum(count for bound, count in self.histogram.items() if bound * 0.84 > budget / 2) / self.samples


def data_lengths(resolved: ResolvedSpec, dataset: DataSet) -> DataLengths:
    """The lengths of one set of the spec. Reads the cache's small file of counts, or the first 256 KiB of a data file; never fails."""
    data = resolved.spec.data
    stored = read_lengths(lengths_path(Path(resolved.cache_dir), dataset, data, resolved.spec.model))
    if stored is None:
        return _assumed(resolved, dataset)
    size, modified = file_state(dataset.path)
    counted = "counted when the data was last prepared"
    if (size, modified) == (stored.file_bytes, stored.modified_ns):
        return _scaled(stored, 1.0, counted)
    changed = f"{counted}, scaled to the file's new size: it has changed since"
    return _scaled(stored, size / stored.file_bytes if stored.file_bytes and size else 1.0, changed)


def _scaled(stored: StoredLengths, by: float, origin: str) -> DataLengths:
    return DataLengths(
        samples=max(1, round(stored.samples * by)),
        tokens=stored.tokens * by,
        supervised_tokens=stored.supervised_tokens * by,
        squares=stored.squares * by,
        longest=stored.longest,
        histogram=_whole({int(bound): count * by for bound, count in stored.histogram.items()}),
        origin=origin,
        is_assumed=by != 1.0,
    )


def _whole(counts: Mapping[int, float]) -> dict[int, int]:
    """A histogram in whole samples; empty, as where none were counted, if it holds too few for any to be left."""
    whole = {bound: round(count) for bound, count in counts.items()}
    return whole if any(whole.values()) else {}


def _assumed(resolved: ResolvedSpec, dataset: DataSet) -> DataLengths:
    data = resolved.spec.data
    found = guess(dataset, purpose="train" if dataset in data.training.values() else "eval")
    # What is split stays whole: it makes more samples.
    pieces = math.ceil(found.tokens / data.max_length) if data.overlong == "split" else 1
    rows, length = found.rows * pieces, max(1.0, min(float(data.max_length), found.tokens / pieces))
    origin = f"assumed, {found.reason}: {rows:,} samples of {length:,.0f} tokens, {found.supervised:.0%} of them supervised"
    return DataLengths(
        samples=rows,
        tokens=rows * length,
        supervised_tokens=rows * length * found.supervised,
        squares=rows * length * length,
        longest=data.max_length,
        histogram={},
        origin=origin,
        is_assumed=True,
    )


def training_lengths(resolved: ResolvedSpec) -> DataLengths:
    """The lengths of one epoch over all sets that are trained on, each with as many samples as it is drawn."""
    sets = resolved.spec.data.training
    found = {name: data_lengths(resolved, dataset) for name, dataset in sets.items()}
    draws = epoch_draws({name: each.samples for name, each in found.items()}, sets)
    if len(found) == 1 and all(draws[name] == each.samples for name, each in found.items()):
        return next(iter(found.values()))
    return joined({name: (each, draws[name] / max(1, each.samples)) for name, each in found.items()})


def epoch_draws(sizes: Mapping[str, int], rules: Mapping[str, TrainingSet]) -> dict[str, float]:
    """Samples of an epoch by set, as `ftcore.batch.mix` draws them but for its rounding: by weight, samples or epochs, else each sample once."""
    weights = {name: rule.weight for name, rule in rules.items() if rule.weight is not None}
    if weights:
        total = sum(sizes.values()) / sum(weights.values())
        return {name: total * weights.get(name, 0.0) for name in sizes}
    return {name: _drawn(sizes[name], rules[name]) for name in sizes}


def _drawn(size: int, rule: TrainingSet) -> float:
    if rule.samples is not None:
        return float(rule.samples)
    return size * (1.0 if rule.epochs is None else rule.epochs)


def joined(parts: Mapping[str, tuple[DataLengths, float]]) -> DataLengths:
    """Several sets as one; each is taken so many times."""
    counts: dict[int, float] = {}
    has_all = all(each.histogram for each, _ in parts.values())
    for each, times in parts.values():
        for bound, count in each.histogram.items() if has_all else ():
            counts[bound] = counts.get(bound, 0.0) + count * times
    return DataLengths(
        samples=max(1, round(sum(each.samples * times for each, times in parts.values()))),
        tokens=sum(each.tokens * times for each, times in parts.values()),
        supervised_tokens=sum(each.supervised_tokens * times for each, times in parts.values()),
        squares=sum(each.squares * times for each, times in parts.values()),
        longest=max(each.longest for each, _ in parts.values()),
        histogram=_whole(dict(sorted(counts.items()))),
        origin="; ".join(f"{name}: {each.origin}" for name, (each, _) in parts.items()),
        is_assumed=any(each.is_assumed for each, _ in parts.values()),
    )
