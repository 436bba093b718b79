"""Time limits: Slurm's own forms exactly, and `2h30m`. Standard library only.

Slurm (man sbatch, --time): minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds. So `4:00` is
four minutes, and a number alone is minutes.
"""

from __future__ import annotations

import re

from ftcore.spec.errors import SpecError

NO_LIMIT = 0
"""What `parse_slurm_time` gives for `0`, UNLIMITED and INFINITE."""
MOST_DAYS = 3650
FORMS = "`2h`, `2h30m`, `90m`, `1d`; or Slurm's MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS[:MINUTES[:SECONDS]]"

_N = "([0-9]{1,7})"
_UNITS = re.compile(rf"(?:{_N}d)?(?:{_N}h)?(?:{_N}m)?(?:{_N}s)?")
_SLURM = (
    (re.compile(_N), (60,)),
    (re.compile(f"{_N}:{_N}"), (60, 1)),
    (re.compile(f"{_N}:{_N}:{_N}"), (3600, 60, 1)),
    (re.compile(f"{_N}-{_N}"), (86400, 3600)),
    (re.compile(f"{_N}-{_N}:{_N}"), (86400, 3600, 60)),
    (re.compile(f"{_N}-{_N}:{_N}:{_N}"), (86400, 3600, 60, 1)),
)
"""Form -> seconds of each of its numbers."""
_MOST = {3600: (23, "hours"), 60: (59, "minutes"), 1: (59, "seconds")}
"""Seconds of a number -> the most it may be behind a larger one."""


def parse_slurm_time(text: str, where: str = "cluster.scheduler.time") -> int:
    """Seconds of a time limit; NO_LIMIT for none. `where` is its name in errors. Raises SpecError for any other form, with the right ones."""
    given = text.strip()
    if given.upper() in ("UNLIMITED", "INFINITE"):
        return NO_LIMIT
    for form, units in _SLURM:
        matched = form.fullmatch(given)
        if matched:
            return _total(given, [int(number) for number in matched.groups()], units, where)
    matched = _UNITS.fullmatch(given)
    if matched is None or not given:
        raise SpecError(f"{_shown(text)} is no time limit", where=where, fix=_fix(given))
    numbers = [(int(number), unit) for number, unit in zip(matched.groups(), (86400, 3600, 60, 1), strict=True) if number is not None]
    seconds = _total(given, [number for number, _ in numbers], tuple(unit for _, unit in numbers), where)
    if seconds == 0:
        raise SpecError(f"{_shown(text)} leaves no time", where=where, fix="give more, or UNLIMITED for no limit")
    return seconds


def render_slurm_time(seconds: int) -> str:
    """Seconds as `--time` takes them: `D-HH:MM:SS`, without days `HH:MM:SS`; UNLIMITED for NO_LIMIT."""
    if seconds == NO_LIMIT:
        return "UNLIMITED"
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02d}:{minute:02d}:{second:02d}"
    return f"{days}-{clock}" if days else clock


def _total(text: str, numbers: list[int], units: tuple[int, ...], where: str) -> int:
    for number, unit in list(zip(numbers, units, strict=True))[1:]:
        most, name = _MOST[unit]
        if number > most:
            fix = f"behind a larger unit, {name} go from 0 to {most}; the forms are {FORMS}"
            raise SpecError(f"{_shown(text)} has {number} {name}", where=where, fix=fix)
    total = sum(number * unit for number, unit in zip(numbers, units, strict=True))
    if total > MOST_DAYS * 86400:
        raise SpecError(f"{_shown(text)} is more than {MOST_DAYS} days", where=where, fix=f"a number alone is minutes; the forms are {FORMS}")
    return total


def _fix(text: str) -> str:
    """The forms, and what a number with a point most likely meant."""
    seconds = re.fullmatch(r"([0-9]{1,7})\.0*", text)
    meant = f"write `{seconds[1]}s` if these are seconds, `{seconds[1]}m` if minutes; " if seconds else ""
    return f"{meant}the forms are {FORMS}"


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 40 else f"{text[:37]}...")
