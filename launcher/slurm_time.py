"""Time limits: Slurm's own forms exactly, and `2h30m`. Standard library only.

Slurm (man sbatch, --time): minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds. So `4:00` is
four minutes, and a number alone is minutes, where ftcore.spec.quantities reads seconds; the other forms are the same.
"""

from __future__ import annotations

import re

from ftcore.spec.errors import SpecError
from ftcore.spec.quantities import MOST_DAYS, QuantityError, clock_seconds, shown, unit_seconds

NO_LIMIT = 0
"""What `parse_slurm_time` gives for `0`, UNLIMITED and INFINITE."""
FORMS = "`2h`, `2h30m`, `90m`, `1d`; or Slurm's MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS[:MINUTES[:SECONDS]]"
_MINUTES = re.compile("[0-9]{1,7}")


def parse_slurm_time(text: str, where: str = "cluster.scheduler.time") -> int:
    """Seconds of a time limit; NO_LIMIT for none. `where` is its name in errors. Raises SpecError for any other form, with the right ones."""
    given = text.strip()
    if given.upper() in ("UNLIMITED", "INFINITE"):
        return NO_LIMIT
    if _MINUTES.fullmatch(given):
        if int(given) > MOST_DAYS * 24 * 60:
            raise SpecError(f"{shown(text)} is more than {MOST_DAYS} days", where=where, fix=f"a number alone is minutes; the forms are {FORMS}")
        return int(given) * 60
    try:
        clock, units = clock_seconds(given), unit_seconds(given)
    except QuantityError as error:
        raise SpecError(error.reason, where=where, fix=f"{error.fix}; the forms are {FORMS}") from error
    if clock is not None:
        return clock
    if units is None:
        raise SpecError(f"{shown(text)} is no time limit", where=where, fix=_fix(given))
    if units == 0:
        raise SpecError(f"{shown(text)} leaves no time", where=where, fix="give more, or UNLIMITED for no limit")
    return units


def render_slurm_time(seconds: int) -> str:
    """Seconds as `--time` takes them: `D-HH:MM:SS`, without days `HH:MM:SS`; UNLIMITED for NO_LIMIT."""
    if seconds == NO_LIMIT:
        return "UNLIMITED"
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02d}:{minute:02d}:{second:02d}"
    return f"{days}-{clock}" if days else clock


def _fix(text: str) -> str:
    """The forms, and what a number with a point most likely meant."""
    seconds = re.fullmatch(r"([0-9]{1,7})\.0*", text)
    meant = f"write `{seconds[1]}s` if these are seconds, `{seconds[1]}m` if minutes; " if seconds else ""
    return f"{meant}the forms are {FORMS}"
