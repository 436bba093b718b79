"""What an hour costs, and how often spot hosts are taken away: from the command line, else from spec.hardware."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ftcore.spec.errors import Problem, SpecError
from ftcore.spec.quantities import QuantityError, parse_duration
from ftcore.spec.sections import HardwareSection

MOST_PRICE = 1e6
MOST_INTERRUPTIONS = 1e4
MOST_GAIN = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the command line says; None: nothing."""

    price: float | None = None
    spot_price: float | None = None
    interruptions_per_day: float | None = None
    currency: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of one accelerator for an hour; None: not known."""

    on_demand: float | None
    spot: float | None
    interruptions_per_day: float | None
    """Of one spot host."""
    currency: str
    missing: tuple[str, ...] = ()
    """What could not be counted for want of a price, in words."""

    @property
    def has_spot(self) -> bool:
        """Whether spot hosts can be planned with: their price may be missing, how often they go may not."""
        return self.interruptions_per_day is not None


def prices_of(hardware: HardwareSection, given: Given) -> Prices:
    """The prices to count with. Raises SpecError, all problems at once, for numbers that are none."""
    check_given(given)
    on_demand = hardware.price_per_hour if given.price is None else given.price
    spot = hardware.spot_price_per_hour if given.spot_price is None else given.spot_price
    often = hardware.interruptions_per_day if given.interruptions_per_day is None else given.interruptions_per_day
    missing = []
    if on_demand is None:
        missing.append("no price of an accelerator is known: give --price or hardware.price_per_hour; plans without one show time only")
    if spot is not None and often is None:
        missing.append("spot hosts are left out: nobody said how often they are taken away (--interruptions-per-day or hardware.interruptions_per_day)")
    if spot is None and often is not None:
        missing.append("no price of spot hosts is known: give --spot-price or hardware.spot_price_per_hour; their plans show time only")
    return Prices(on_demand=on_demand, spot=spot, interruptions_per_day=often, currency=given.currency or hardware.currency, missing=tuple(missing))


def check_given(given: Given, gain: float | None = None) -> None:
    """Raises SpecError, all problems at once, for a price, an interruption rate, a currency or a gain (--gain) that is none."""
    problems = [
        *_out_of_range(given.price, "--price", MOST_PRICE),
        *_out_of_range(given.spot_price, "--spot-price", MOST_PRICE),
        *_out_of_range(given.interruptions_per_day, "--interruptions-per-day", MOST_INTERRUPTIONS),
        *_out_of_range(gain, "--gain", MOST_GAIN),
    ]
    if given.currency is not None and (not given.currency.strip() or len(given.currency) > 16 or not given.currency.isprintable()):
        problems.append(Problem(what=f"'{given.currency}' is no currency", where="--currency", fix="write it as in EUR"))
    if problems:
        raise SpecError(problems)


def seconds_of(text: str, where: str) -> float:
    """Seconds of a duration on the command line, more than none. Raises SpecError for anything else."""
    try:
        seconds = parse_duration(text)
    except QuantityError as error:
        raise SpecError(error.reason, where=where, fix=error.fix) from error
    if seconds <= 0:
        raise SpecError("that leaves no time at all", where=where, fix="write it as in 24h")
    return seconds


def _out_of_range(value: float | None, where: str, most: float) -> list[Problem]:
    if value is None or (math.isfinite(value) and 0 <= value <= most):
        return []
    return [Problem(what=f"{value:g} is out of range", where=where, fix=f"give a number from 0 to {most:,.0f}")]
