"""How long a run takes on hosts that may be taken away: expected time, its spread, and how often to save. Pure arithmetic, seconds throughout.

Interruptions are a Poisson process of rate L a second, for all hosts of a run together. A stretch of work of s seconds between two saves counts once it is
whole. After an interruption the run waits D (nothing runs, and nothing can be interrupted), starts again for R, which can be interrupted, and does the stretch
once more from its beginning. Then the stretch takes, in the mean,

    E = (1/L + D) e^(L R) (e^(L s) - 1)

(Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps", eq. 20, with D; Bougeret et al. 2011, eq. 6). Stretches are
independent, since the process has no memory: means and variances add up. Its second moment follows from the same first-step analysis.
The interval between saves that costs least is near sqrt(2 d M), d what a save costs and M = 1/L the mean time between interruptions (Young 1974;
Daly 2006, eq. 6).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ftcore.spec.quantities import MOST_DAYS

DAY_S = 86400.0
LATE = 0.9
"""The share of runs that are done by what is called late."""
Z_LATE = 1.2815515655446004
"""The same share of a normal distribution lies below so many standard deviations."""
MANY = 500
"""Interruptions whose sum is normal for all that matters."""
MOST_S = MOST_DAYS * DAY_S
"""A run that takes longer never ends for all that matters."""
_MOST_EXPONENT = 100.0
"""Beyond e^this tries nothing gets done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a run has to do."""

    updates: int
    update_s: float
    """An update with its share of the evaluations."""
    start_s: float
    """From the launch to the first update; after each interruption again."""
    end_s: float
    """The last save and the export."""
    stall_s: float
    """What a save holds up training."""
    write_s: float
    """From a save's begin to where it counts; what is trained meanwhile is lost with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """What may happen to it."""

    hosts: int
    per_host: float
    """Interruptions a second of one host; one host that is lost stops all ranks."""
    until_replaced_s: float
    """Until another host stands in for the one that is lost."""
    has_notice: bool = False
    """The run is told early enough to save first: nothing is lost."""
    elastic: bool = False
    """It goes on with the hosts that are left, and waits for none."""

    @property
    def rate(self) -> float:
        """Interruptions a second, of all hosts together."""
        return self.hosts * self.per_host

    @property
    def shrinks(self) -> bool:
        """Whether the run goes on without a host; one alone can't."""
        return self.elastic and self.hosts > 1

    @property
    def wait_s(self) -> float:
        """Until the run may start again."""
        return 0.0 if self.shrinks else self.until_replaced_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Elapsed:
    """A run's time from launch to end."""

    mean_s: float
    late_s: float
    """By then LATE of such runs are done."""
    interruptions: float
    """In the mean."""
    waiting_s: float
    """For hosts, in the mean; part of mean_s."""
    lost_s: float
    """Work that is done again, in the mean; part of mean_s."""
    paid_s: float
    """What all hosts together are paid for, over their number: while one is waited for, the others stay; an elastic run pays for those left."""


def unbroken(work: Work, save_steps: int) -> Elapsed:
    """The run without interruptions, with a save after every `save_steps` updates (0: at the end only)."""
    total = work.start_s + work.updates * work.update_s + saves(work.updates, save_steps) * work.stall_s + work.end_s
    return Elapsed(mean_s=total, late_s=total, interruptions=0.0, waiting_s=0.0, lost_s=0.0, paid_s=total)


def broken(work: Work, hazard: Hazard, save_steps: int) -> Elapsed:
    """The run with interruptions, with a save after every `save_steps` updates (0: at the end only)."""
    base = unbroken(work, save_steps).mean_s
    if hazard.rate <= 0:
        return unbroken(work, save_steps)
    mean, variance = _with_notice(work, hazard, base) if hazard.has_notice else _with_losses(work, hazard, save_steps)
    if not mean < MOST_S:
        return Elapsed(mean_s=math.inf, late_s=math.inf, interruptions=math.inf, waiting_s=math.inf, lost_s=math.inf, paid_s=math.inf)
    # The clock of interruptions stands still while the run waits.
    count = hazard.rate * mean / (1 + hazard.rate * hazard.wait_s)
    waiting = count * hazard.wait_s
    again = work.write_s if hazard.has_notice else 0.0
    lost = max(0.0, mean - base - waiting - count * (work.start_s + again))
    found = Elapsed(
        mean_s=mean,
        late_s=_late(base, mean - base, variance, count),
        interruptions=count,
        waiting_s=waiting,
        lost_s=lost,
        paid_s=mean - waiting / hazard.hosts,
    )
    return _shrinking(found, base, hazard.hosts) if hazard.shrinks else found


def best_save_steps(work: Work, hazard: Hazard) -> int:
    """Updates between saves by Young and Daly, the whole number beside it that takes less time; 0: at the end only, where no save on the way gains anything."""
    if hazard.rate <= 0 or hazard.has_notice:
        return 0
    # A write that holds nothing up can't be made more often than it takes.
    ideal = max(math.sqrt(2 * work.stall_s / hazard.rate), work.write_s) / work.update_s
    below = max(1, math.floor(min(ideal, work.updates)))
    tried = {steps if steps < work.updates else 0 for steps in (below, below + 1, work.updates)}
    return min(sorted(tried, reverse=True), key=lambda steps: broken(work, hazard, steps).mean_s)


def saves(updates: int, save_steps: int) -> int:
    """Saves on the way; the one at the end is not among them."""
    return (updates - 1) // save_steps if save_steps > 0 else 0


def _shrinking(elapsed: Elapsed, base: float, hosts: int) -> Elapsed:
    """A run that has one host less after each interruption, from one with all of them that waits for none, and takes `base` without interruptions.

    It needs as many hours of a host, which is what is paid for. With k interruptions (Poisson) these fall into k + 1 parts, uniform on what they sum to
    (Dirichlet), on n to n - k hosts. With n interruptions no host is left: the mean is that of runs that end, and there is none where half of them don't.
    """
    count = elapsed.interruptions
    if count <= 0:
        return elapsed
    cost = (elapsed.mean_s - base) / count
    numbers = [number for number in _likely(count) if number < hosts]
    ones, squares = ([0.0, *accumulate((hosts - lost) ** -power for lost in range(hosts))] for power in (1, 2))
    kinds = []
    for number in numbers:
        host_s, parts = hosts * (base + number * cost), number + 1
        # While that many hosts are lost one by one: the parts' mean, and the variance of a Dirichlet-weighted sum.
        mean, square = ones[parts] / parts, squares[parts] / parts
        deviation = host_s * math.sqrt(max(0.0, square - mean * mean) / (parts + 1))
        kinds.append((_poisson(number, count), host_s * mean, deviation))
    ending = sum(chance for chance, _, _ in kinds)
    if ending < 0.5:
        return dataclasses.replace(elapsed, mean_s=math.inf, late_s=math.inf, paid_s=math.inf)
    mean = sum(chance * middle for chance, middle, _ in kinds) / ending
    late = _quantile(kinds, base, 20 * mean) if ending >= LATE else math.inf
    return dataclasses.replace(elapsed, mean_s=mean, late_s=late)


def _with_losses(work: Work, hazard: Hazard, save_steps: int) -> tuple[float, float]:
    """(mean, variance) of the whole run; what is trained since the last whole save is lost."""
    # A save that is still being written is lost as well: s/2 + write_s in the mean, the same as starting again for so much longer.
    again = work.start_s + work.write_s
    count = saves(work.updates, save_steps)
    stretch = save_steps * work.update_s + work.stall_s
    rest = (work.updates - count * save_steps) * work.update_s + work.end_s
    parts = [(1, _stretch(work.start_s, 0.0, hazard)), (count, _stretch(stretch, again, hazard)), (1, _stretch(rest, again, hazard))]
    return sum(times * mean for times, (mean, _) in parts), sum(times * variance for times, (_, variance) in parts)


def _with_notice(work: Work, hazard: Hazard, base: float) -> tuple[float, float]:
    """(mean, variance): each interruption costs a save, the wait and a start, and nothing is done again."""
    back, square = _comeback(work.start_s, hazard)
    count = hazard.rate * base
    cost, cost_square = work.write_s + back, work.write_s**2 + 2 * work.write_s * back + square
    return base + count * cost, count * cost_square


def _stretch(length: float, again: float, hazard: Hazard) -> tuple[float, float]:
    """(mean, variance) of a stretch's time, where each further try takes `again` more."""
    rate = hazard.rate
    if length <= 0:
        return 0.0, 0.0
    if rate * (length + again) > _MOST_EXPONENT:
        return math.inf, math.inf
    back, back_square = _comeback(again + length, hazard)
    failing = -math.expm1(-rate * length)
    first, first_square, until = _cut(length, rate)
    mean = first + failing * back
    square = first_square + 2 * until * back + failing * back_square
    return mean, max(0.0, square - mean * mean)


def _comeback(length: float, hazard: Hazard) -> tuple[float, float]:
    """First and second moment of the time from an interruption until `length` seconds have run without another one."""
    rate, wait = hazard.rate, hazard.wait_s
    if rate * length > _MOST_EXPONENT:
        return math.inf, math.inf
    failing = -math.expm1(-rate * length)
    first, first_square, until = _cut(length, rate)
    mean = (wait + first) * math.exp(rate * length)
    # Y = D + X + 1[X < length] Y', X the time until an interruption or the end.
    square = wait * wait + 2 * wait * first + first_square + 2 * mean * (wait * failing + until)
    return mean, square * math.exp(rate * length)


def _cut(length: float, rate: float) -> tuple[float, float, float]:
    """Of X = min(T, length), T exponential: its mean, its second moment, and the mean of T where T < length (0 elsewhere)."""
    through = math.exp(-rate * length)
    mean = -math.expm1(-rate * length) / rate
    until = mean - length * through
    return mean, 2 * until / rate, until


def _late(base: float, extra: float, variance: float, count: float) -> float:
    """The LATE quantile of base + a sum of as many costs as there are interruptions (Poisson), costs normal, with this mean and variance of the sum."""
    if count < 1e-9 or extra <= 0:
        return base
    if count > MANY:
        return base + extra + Z_LATE * math.sqrt(variance)
    cost = extra / count
    spread = math.sqrt(max(0.0, variance / count - cost * cost))
    kinds = [(_poisson(number, count), base + number * cost, spread * math.sqrt(number)) for number in _likely(count)]
    return _quantile(kinds, base, base + extra + 20 * math.sqrt(variance) + 20 * (cost + spread))


def _quantile(kinds: Sequence[tuple[float, float, float]], low: float, high: float) -> float:
    """The LATE quantile, between two bounds, of a mixture of normal distributions: (chance, mean, standard deviation) of each."""
    for _ in range(80):
        middle = (low + high) / 2
        share = sum(chance * _normal(middle, mean, deviation) for chance, mean, deviation in kinds)
        low, high = (low, middle) if share >= LATE else (middle, high)
    return high


def _normal(value: float, mean: float, deviation: float) -> float:
    return 0.5 * math.erfc((mean - value) / (deviation * math.sqrt(2))) if deviation > 0 else float(value >= mean)


def _likely(count: float) -> range:
    """The numbers of interruptions that matter where `count` is the mean: twelve standard deviations to either side."""
    return range(max(0, math.floor(count - 12 * math.sqrt(count))), math.ceil(count + 12 * math.sqrt(count) + 12))


def _poisson(number: int, count: float) -> float:
    """The chance of `number` where `count` is the mean."""
    return math.exp(number * math.log(count) - count - math.lgamma(number + 1))
