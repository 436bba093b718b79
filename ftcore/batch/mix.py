"""Which samples an epoch draws from each of several sets, and in which order: a function of the sets, their rules, the seed and the epoch alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ftcore.batch.order import Int64s, epoch_order, raw_words
from ftcore.spec.errors import DataError, Problem
from ftcore.spec.quantities import as_written


class DrawRule(Protocol):
    """How much of an epoch a set is; at most one of them is given. (`ftcore.spec.data_sections.TrainingSet` is one.)"""

    @property
    def weight(self) -> float | None:
        """Share of the epoch's samples, relative to the other sets'."""

    @property
    def samples(self) -> int | None:
        """Samples an epoch."""

    @property
    def epochs(self) -> float | None:
        """How often an epoch goes through the set."""


class Mixed(Protocol):
    """What is drawn from: one set or several, whose samples are numbered one set after the other. (`ftcore.data.mix.SampleMix` is one.)"""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the sets."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each set."""

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Of each set."""

    @property
    def fingerprint(self) -> str:
        """Of all together."""

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """[S] tokens of each sample."""


def draws_an_epoch(sizes: Mapping[str, int], rules: Mapping[str, DrawRule]) -> dict[str, int]:
    """Samples that an epoch draws from each set, by name.

    By `samples`: as many; by `epochs`: that often its size, rounded; by weights: as many as all sets have, shared out by the largest remainder
    (Hamilton's method); by no rule: each sample once. Raises DataError, naming all sets, for rules that don't go together and for a set that is never drawn.
    """
    given = {name: rules.get(name) for name in sizes}
    weights = {name: rule.weight for name, rule in given.items() if rule is not None and rule.weight is not None}
    if weights:
        wrong = [(name, "has no weight, others have one", "give each set a weight, or none") for name in sizes if name not in weights]
        wrong += [(name, f"has weight {weight}", "use a weight over 0, or leave the set out") for name, weight in weights.items() if not weight > 0]
        problems = [Problem(what=f"set {name} {what}", where=_key(name), fix=fix) for name, what, fix in wrong]
        if problems:
            raise DataError(problems)
        counts = _by_weight(sum(sizes.values()), weights)
    else:
        counts = {name: _by_rule(size, given[name]) for name, size in sizes.items()}
    never = [name for name, count in counts.items() if count < 1]
    if never:
        fix = "give it more weight, or leave it out"
        raise DataError([Problem(what=f"an epoch draws no sample of set {name}", where=_key(name), fix=fix) for name in never])
    return counts


def _key(name: str) -> str:
    """The key of a set in the spec."""
    return "data.train" if name == "train" else f"data.train_sets.{name}"


def _by_rule(size: int, rule: DrawRule | None) -> int:
    if rule is None:
        return size
    if rule.samples is not None:
        return rule.samples
    return size if rule.epochs is None else int(as_written(rule.epochs) * size + Fraction(1, 2))


def _by_weight(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    exact = {name: as_written(weight) * total / sum(map(as_written, weights.values())) for name, weight in weights.items()}
    counts = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(weights, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: total - sum(counts.values())]:
        counts[name] += 1
    return counts


@dataclass(frozen=True, slots=True)
class MixOrder:
    """The draws of every epoch. One set that is drawn once gives `epoch_order`."""

    sizes: tuple[int, ...]
    """Samples of each set."""
    fingerprints: tuple[str, ...]
    counts: tuple[int, ...]
    """Samples drawn from each set in an epoch."""

    @staticmethod
    def of(mix: Mixed, rules: Mapping[str, DrawRule]) -> MixOrder:
        """The draws by the rules of the sets' names. Raises DataError as `draws_an_epoch` does."""
        counts = draws_an_epoch(dict(zip(mix.names, mix.sizes, strict=True)), rules)
        return MixOrder(mix.sizes, mix.fingerprints, tuple(counts[name] for name in mix.names))

    @property
    def draws(self) -> int:
        """Samples of an epoch."""
        return sum(self.counts)

    @property
    def is_once_each(self) -> bool:
        """Whether an epoch draws each sample once."""
        return self.counts == self.sizes

    def epoch(self, epoch: int, *, seed: int) -> Int64s:
        """Sample numbers in the order of the epoch, int64 [draws]; the cost does not depend on the epoch's number.

        Draw k of a set in this epoch is its draw t = epoch · count + k of the run: number t mod size of its permutation t div size. So a set goes on
        where the epoch before stopped, and each of its samples comes equally often. The sets are interleaved by stratified jitter: draw k of n has
        the place (k + u) / n, u uniform in [0, 1), so that each set's share of any stretch is within a few samples of its share of the epoch.
        """
        starts = np.cumsum((0, *self.sizes[:-1]))
        drawn: list[Int64s] = [start + self._drawn(index, epoch, seed) for index, start in enumerate(starts.tolist())]
        if len(drawn) == 1:
            return drawn[0]
        words = raw_words(self.draws, key=f"interleave/{'/'.join(self.fingerprints)}/{seed}/{epoch}")
        jitter = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        within = np.concatenate([np.arange(count, dtype=np.float64) for count in self.counts])
        places = (within + jitter) / np.repeat(np.asarray(self.counts, dtype=np.float64), self.counts)
        order: Int64s = np.concatenate(drawn)[np.argsort(places, kind="stable")]
        return order

    def _drawn(self, index: int, epoch: int, seed: int) -> Int64s:
        """This epoch's samples of one set, numbered from 0 within it."""
        size, count = self.sizes[index], self.counts[index]
        first, last = epoch * count, (epoch + 1) * count
        parts = []
        for number in range(first // size, -(-last // size)):
            order = epoch_order(size, fingerprint=self.fingerprints[index], seed=seed, epoch=number)
            parts.append(order[max(0, first - number * size) : last - number * size])
        drawn: Int64s = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return drawn

    def fingerprint(self, of_data: str) -> str:
        """What a position in the run belongs to: the data, and what an epoch draws of them where that isn't each sample once."""
        if self.is_once_each:
            return of_data
        return hashlib.sha256(f"{of_data}/{'/'.join(map(str, self.counts))}".encode()).hexdigest()
