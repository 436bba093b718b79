"""Sizes (`24 GiB`, `512MB`) and durations (`2h30m`, `2:30:00`) as people write them, read strictly. Standard library only."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction

SIZE_FORMS = "`24 GiB` (1024 x 1024 x 1024 bytes each), `512 MB` (1000 x 1000), `1.5 TB`, or bytes alone"
DURATION_FORMS = "`2h30m`, `90s`, `1d`, `2:30:00` (HOURS:MINUTES:SECONDS), `1-12:00:00` (DAYS-), or seconds alone"
MOST_DAYS = 3650
MOST_BYTES = 10**18

_PREFIXES = "KMGTP"
SIZE_UNITS = {"B": 1, "kB": 1000} | {f"{p}B": 1000 ** (i + 1) for i, p in enumerate(_PREFIXES)} | {f"{p}iB": 1024 ** (i + 1) for i, p in enumerate(_PREFIXES)}
"""Unit -> bytes."""
_SIZE = re.compile(r"([0-9]{1,30})(?:\.([0-9]{1,30}))?(?: ?([A-Za-z]{1,12}))?")

_N = "([0-9]{1,7})"
_UNITS = re.compile(rf"(?:{_N}d)?(?:{_N}h)?(?:{_N}m)?(?:{_N}s)?")
_UNIT_SECONDS = (86400, 3600, 60, 1)
_CLOCKS = (
    (re.compile(f"{_N}:{_N}"), (60, 1)),
    (re.compile(f"{_N}:{_N}:{_N}"), (3600, 60, 1)),
    (re.compile(f"{_N}-{_N}"), (86400, 3600)),
    (re.compile(f"{_N}-{_N}:{_N}"), (86400, 3600, 60)),
    (re.compile(f"{_N}-{_N}:{_N}:{_N}"), (86400, 3600, 60, 1)),
)
"""Slurm's forms with more than one number (man sbatch, --time) -> seconds of each. `4:00` is four minutes."""
_MOST = {3600: (23, "hours"), 60: (59, "minutes"), 1: (59, "seconds")}
"""Seconds of a number -> the most it may be behind a larger one."""
_SECONDS = re.compile(r"([0-9]{1,9})(?:\.[0-9]{1,9})?")
_LOOSE_DURATION = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,6})?) ?([A-Za-z]+)")
_WORDS = {
    **dict.fromkeys(("d", "day", "days"), 86400),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
}


class QuantityError(ValueError):
    """A text that is no size or no duration: `reason`, and in `fix` the nearest right form."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"{reason}; {fix}")
        self.reason = reason
        self.fix = fix


def parse_size(text: str) -> int:
    """Bytes. `MB` is 10^6 of them and `MiB` 2^20 (IEC 80000-13); a number without a unit is bytes; part of a byte is rounded. Raises QuantityError."""
    given = text.strip()
    matched = _SIZE.fullmatch(given)
    whole, part, unit = matched.groups() if matched else ("", None, None)
    if matched is None or (unit or "B") not in SIZE_UNITS or (part is not None and (unit or "B") == "B"):
        raise QuantityError(f"{shown(text)} is no size", _size_fix(given))
    scale: int = 10 ** len(part or "")
    size: int = (2 * int(whole + (part or "")) * SIZE_UNITS[unit or "B"] + scale) // (2 * scale)
    if size > MOST_BYTES:
        raise QuantityError(f"{shown(text)} is more than a million terabytes", f"the forms are {SIZE_FORMS}")
    return size


def parse_duration(text: str) -> float:
    """Seconds; a number without a unit is seconds. Raises QuantityError."""
    given = text.strip()
    seconds = clock_seconds(given)
    if seconds is None:
        seconds = unit_seconds(given)
    if seconds is not None:
        return float(seconds)
    if not _SECONDS.fullmatch(given):
        raise QuantityError(f"{shown(text)} is no duration", _duration_fix(given))
    if float(given) > MOST_DAYS * 86400:
        raise _too_long(given)
    return float(given)


def clock_seconds(text: str) -> int | None:
    """Seconds of `H:MM:SS`, `M:SS`, `D-H[:MM[:SS]]`; None for another form. Raises QuantityError for a number out of its range."""
    for form, units in _CLOCKS:
        matched = form.fullmatch(text)
        if matched:
            return _total(text, [int(number) for number in matched.groups()], units)
    return None


def unit_seconds(text: str) -> int | None:
    """Seconds of `1d2h30m5s`, any of it; None for another form. Raises QuantityError for a number out of its range."""
    matched = _UNITS.fullmatch(text)
    if not text or matched is None:
        return None
    given = [(int(number), unit) for number, unit in zip(matched.groups(), _UNIT_SECONDS, strict=True) if number is not None]
    return _total(text, [number for number, _ in given], [unit for _, unit in given])


def render_units(seconds: int) -> str:
    """Whole seconds as `1d2h30m5s`, without the parts that are 0; `0s` for none."""
    parts = []
    for unit, letter in zip(_UNIT_SECONDS, "dhms", strict=True):
        count, seconds = divmod(seconds, unit)
        parts += [f"{count}{letter}"] * (count > 0)
    return "".join(parts) or "0s"


def shown(text: str) -> str:
    """A user's text as an error quotes it: in ASCII, and short."""
    return ascii(text if len(text) <= 40 else f"{text[:37]}...")


def _total(text: str, numbers: Sequence[int], units: Sequence[int]) -> int:
    total = sum(number * unit for number, unit in zip(numbers, units, strict=True))
    if total > MOST_DAYS * 86400:
        raise _too_long(text)
    for number, unit in list(zip(numbers, units, strict=True))[1:]:
        most, name = _MOST[unit]
        if number > most:
            fix = f"behind a larger unit, {name} go from 0 to {most}: write `{render_units(total)}`"
            raise QuantityError(f"{shown(text)} has {number} {name}", fix)
    return total


def _too_long(text: str) -> QuantityError:
    return QuantityError(f"{shown(text)} is more than {MOST_DAYS} days", "give less")


def _size_fix(text: str) -> str:
    """The nearest right form of what a text most likely meant, else all of them."""
    matched = re.fullmatch(r"([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([A-Za-z]*)", text)
    if matched is None or len(text) > 40:
        return f"the forms are {SIZE_FORMS}"
    number, unit = re.sub("[_,]", "", matched[1]), matched[2]
    near = {known.lower(): known for known in SIZE_UNITS}
    low = unit.lower()
    meant = next((near[form] for form in (low, f"{low}b") if form in near), None)
    if low.endswith(("bit", "bits")) or meant is None:
        return f"the forms are {SIZE_FORMS}"
    if len(low) == 1 and low != "b":
        return f"write `{number} {meant}` (powers of 1000) or `{number} {meant[0]}iB` (powers of 1024)"
    if meant == "B":
        return f"bytes are whole: write `{int(number.partition('.')[0]) + 1}`, or give a unit: {SIZE_FORMS}" if "." in number else f"write `{number}`"
    return f"write `{number} {meant}`"


def _duration_fix(text: str) -> str:
    """The nearest right form of what a text most likely meant, else all of them."""
    parts = [(float(number), unit.lower()) for number, unit in _LOOSE_DURATION.findall(text)]
    rest = re.sub(r"[ ,]|and", "", _LOOSE_DURATION.sub("", text))
    if parts and not rest and len(text) <= 60 and all(unit in _WORDS for _, unit in parts):
        seconds = math.fsum(number * _WORDS[unit] for number, unit in parts)
        if seconds.is_integer() and seconds <= MOST_DAYS * 86400:
            return f"write `{render_units(int(seconds))}`; the forms are {DURATION_FORMS}"
    return f"the forms are {DURATION_FORMS}"


def as_written(number: float) -> Fraction:
    """The number that the shortest decimal text of a float says: 1.1 is 11/10, where the float itself lies a little above."""
    return Fraction(repr(float(number)))


def updates_in(epochs: float, an_epoch: int) -> int:
    """Updates of so many epochs when each has `an_epoch`; a part of an epoch counts up to a whole update."""
    return math.ceil(as_written(epochs) * an_epoch)
