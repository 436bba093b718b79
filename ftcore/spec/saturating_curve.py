"""A curve that levels off, with what is uncertain about it: the curves that noisy points leave possible, as seeded draws. Standard library only.

A curve is `end + fall * g(x)`: g falls from 1 at the first point to 0 at `last`, as a power, (x + c)^-a, or exponentially, e^-(x/tau)^b. Both are usual forms
of learning curves (Domhan, Springenberg, Hutter 2015, table 1: pow4 and Weibull; Hoffmann et al. 2022, eq. 2: a constant plus powers).
For a given shape (a and c, or tau and b) the curve is a straight line in g, and all of it is known in closed form (Gelman et al., Bayesian Data Analysis, 14.2,
with the prior 1/sigma^2); shapes are weighed by how likely they make the points. That is what a nonlinear least-squares fit lacks with a dozen points: its
covariance is that of one shape, while most of what is not known of the end is which shape it is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

LEAST_POINTS = 5
"""Three values decide a curve; two more say how noisy the points are."""
POWERS = (0.02, 3.5)
"""Range of a: from nearly a logarithm of x to a fall that is over at once."""
OFFSETS = (0.0, 0.05, 0.2, 0.6)
"""Values of c, as shares of `last`."""
TAUS = (0.03, 10.0)
"""Range of tau, as a share of `last`: up to nearly a straight line."""
BENDS = (1.0, 0.5, 0.75, 1.4)
"""Values of b."""
SHAPES = 16
"""Values of a shape's parameter that are looked at in its range, equally far apart by their logarithm."""
LIKELY = 7.0
"""Shapes whose log-likelihood lies so much below the best one's are not looked at more closely."""
FLOOR = 1e-4
"""Least noise, as a share of the largest value: points that lie on a curve by chance are no proof of it."""
STRAY = 0.15
"""Real curves are near these forms and not of them: the fall that is still to come may be this share off (a standard deviation), beside all else."""
HUBER = 2.5
"""Residuals beyond so many robust standard deviations are weighed down (Huber 1964)."""

Points = Sequence[tuple[float, float]]
"""(x, value), x > 0 and ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One curve that the points leave possible."""

    kind: str
    """power or exponential."""
    scale: float
    """a, or tau in units of x."""
    bend: float
    """c in units of x, or b."""
    first: float
    last: float
    end: float
    """Its value at `last`."""
    fall: float
    """From `first` to `last` by its shape; below 0 it rises."""
    noise: float
    """Standard deviation of points about it."""
    left: float
    """g at the last point."""
    off: float
    """What of `end` is not the shape's own: the curve leaves its shape behind the last point, little by little."""

    def at(self, x: float) -> float:
        """Its value at `x`, which lies at `first` or behind it."""
        falling = Shape(self.kind, self.scale, self.bend).falling(x, (self.first, self.last))
        strayed = self.off * (1 - falling / self.left) if falling < self.left else 0.0
        return self.end - self.off + self.fall * falling + strayed


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides g but for where it begins and ends; the fields are those of a Curve."""

    kind: str
    scale: float
    bend: float

    def falling(self, x: float, ends: tuple[float, float]) -> float:
        """g at `x`: 1 at the first of `ends`, 0 at the second."""
        bottom, here = self._since(ends[0], ends[1]), self._since(ends[0], x)
        return 1 - here / bottom if bottom else 0.0

    def _since(self, first: float, x: float) -> float:
        """What the curve has changed by from `first` to `x`, over its value at `first`; expm1 keeps the digits of what is nearly straight."""
        if self.kind == "power":
            return math.expm1(-self.scale * math.log((x + self.bend) / (first + self.bend)))
        return math.expm1((first / self.scale) ** self.bend - (x / self.scale) ** self.bend)


@dataclass(frozen=True, slots=True)
class _Line:
    """The straight-line regression of the points on one shape's g."""

    shape: Shape
    end: float
    fall: float
    inverse: tuple[float, float, float]
    """(X'X)^-1: of end, of both, of fall."""
    squares: float
    """Sum of weighted squares of the residuals, and the floor's."""
    likelihood: float
    """Log of the points' likelihood with end, fall and noise integrated out."""


def draw_curves(points: Points, last: float, *, count: int = 1000, seed: int = 0) -> list[Curve]:
    """`count` curves, drawn as often as the points make them likely, up to `last` (the last point's x, or beyond it).

    Raises ValueError for fewer than LEAST_POINTS points.
    """
    if len(points) < LEAST_POINTS:
        raise ValueError(f"{len(points)} points, {LEAST_POINTS} are needed")
    ends = points[0][0], max(last, points[-1][0])
    weights = [1.0] * len(points)
    for _ in range(2):
        best = max(_coarse(points, weights, ends), key=lambda line: line.likelihood)
        weights = _weights(points, best, ends)
    lines = _lines(points, weights, ends)
    most = max(line.likelihood for line, _ in lines)
    chances = [width * math.exp(line.likelihood - most) for line, width in lines]
    freedom, generator = max(1.0, sum(weights) - 2), random.Random(seed)
    drawn = generator.choices([line for line, _ in lines], chances, k=count)
    return [_drawn(line, freedom, (*ends, points[-1][0]), generator) for line in drawn]


def quantile(values: Sequence[float], share: float) -> float:
    """The value that a share of `values` lies below, between neighbours in proportion; `values` is not empty and need not be sorted."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


_Family = tuple[str, float, float, float]
"""Kind and bend, and the range of the scale."""


def _families(last: float) -> list[_Family]:
    powers: list[_Family] = [("power", share * last, *POWERS) for share in OFFSETS]
    return powers + [("exponential", bend, TAUS[0] * last, TAUS[1] * last) for bend in BENDS]


def _coarse(points: Points, weights: Sequence[float], ends: tuple[float, float]) -> list[_Line]:
    """A first look: each family over all of its range."""
    return [line for family in _families(ends[1]) for line, _ in _row(points, weights, ends, family)]


def _lines(points: Points, weights: Sequence[float], ends: tuple[float, float]) -> list[tuple[_Line, float]]:
    """Each likely shape's regression, and the share of all shapes (by the logarithm of their scale) that it stands for."""
    rows = [(family, _row(points, weights, ends, family)) for family in _families(ends[1])]
    bar = max(line.likelihood for _, row in rows for line, _ in row) - LIKELY
    found = []
    for (kind, bend, low, high), row in rows:
        near = [line.shape.scale for line, _ in row if line.likelihood > bar] or [max(row, key=lambda pair: pair[0].likelihood)[0].shape.scale]
        step = (high / low) ** (1 / (SHAPES - 1))
        # With little noise all that is likely lies between two values of the first look.
        found += _row(points, weights, ends, (kind, bend, max(low, near[0] / step), min(high, near[-1] * step)))
    return found


def _row(points: Points, weights: Sequence[float], ends: tuple[float, float], family: _Family) -> list[tuple[_Line, float]]:
    """The shapes of a family, and the share of its whole range that each stands for."""
    kind, bend, low, high = family
    step = math.log(high / low) / (SHAPES - 1)
    whole = math.log(POWERS[1] / POWERS[0]) if kind == "power" else math.log(TAUS[1] / TAUS[0])
    return [(_line(points, weights, ends, Shape(kind, low * math.exp(step * number), bend)), step / whole) for number in range(SHAPES)]


def _line(points: Points, weights: Sequence[float], ends: tuple[float, float], shape: Shape) -> _Line:
    weighed = [(w, shape.falling(x, ends), y) for w, (x, y) in zip(weights, points, strict=True)]
    total, ones_g, squares_g = sum(weights), sum(w * g for w, g, _ in weighed), sum(w * g * g for w, g, _ in weighed)
    sum_y, sum_gy = sum(w * y for w, _, y in weighed), sum(w * g * y for w, g, y in weighed)
    determinant = max(total * squares_g - ones_g * ones_g, 1e-12 * total * total)
    end, fall = (squares_g * sum_y - ones_g * sum_gy) / determinant, (total * sum_gy - ones_g * sum_y) / determinant
    squares = total * _floor(points) ** 2 + sum(w * (y - end - fall * g) ** 2 for w, g, y in weighed)
    likelihood = -0.5 * math.log(determinant) - 0.5 * max(1.0, total - 2) * math.log(squares)
    return _Line(shape, end, fall, (squares_g / determinant, -ones_g / determinant, total / determinant), squares, likelihood)


def _floor(points: Points) -> float:
    """Least standard deviation that the points are taken to have."""
    return FLOOR * max(abs(y) for _, y in points) or 1e-12


def _weights(points: Points, line: _Line, ends: tuple[float, float]) -> list[float]:
    residuals = [abs(y - line.end - line.fall * line.shape.falling(x, ends)) for x, y in points]
    # Three values were fitted, so that residuals are smaller than the noise.
    spread = max(_floor(points), 1.4826 * median(residuals) * math.sqrt(len(points) / (len(points) - 3)))
    return [min(1.0, HUBER * spread / residual) if residual > 0 else 1.0 for residual in residuals]


def _drawn(line: _Line, freedom: float, places: tuple[float, float, float], generator: random.Random) -> Curve:
    """One curve of a shape; `places` are where it begins and ends and where the last point lies."""
    first, last, seen = places
    of_end, of_both, of_fall = line.inverse
    noise = math.sqrt(line.squares / generator.gammavariate(freedom / 2, 2))
    one, other, stray = (generator.gauss(0, 1) for _ in range(3))
    along = of_both / math.sqrt(of_fall)
    fall = line.fall + noise * math.sqrt(of_fall) * one
    end = line.end + noise * (along * one + math.sqrt(max(0.0, of_end - along * along)) * other)
    left = line.shape.falling(seen, (first, last))
    off = STRAY * fall * left * stray
    return Curve(**asdict(line.shape), first=first, last=last, end=end + off, fall=fall, noise=noise, left=left, off=off)
