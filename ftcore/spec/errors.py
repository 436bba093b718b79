"""Errors that a user can act on: each says where, what and the fix, and carries its exit status."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

INTERRUPT_STATUS_BASE = 128
"""A run ended by signal N exits with this plus N."""
PREEMPTED = 75
"""Status of a run that stopped because it was asked to, with its state saved: EX_TEMPFAIL, "try again later"."""

_UNSEEN = (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SHOWN = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in _UNSEEN}
"""What a terminal would obey or turn around (control characters but for tabs and line ends, changes of direction): as Python writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake, as data: what a validator yields and what an error prints."""

    what: str
    """What is wrong, with the values seen."""
    where: str = ""
    """Key path (`batch.global_batch_size`), or what the problem is about."""
    fix: str = ""
    """What the user can do about it."""
    file: str = ""
    """The file that holds the mistake, if one does."""
    line: int | None = None
    """1-based line in `file`."""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        head = ": ".join(part for part in (place, self.where) if part)
        text = f"{head}: {self.what}" if head else self.what
        return visible(f"{text}\n    fix: {self.fix}" if self.fix else text)


def visible(text: str) -> str:
    """`text` with what a terminal would obey written out, as Python would."""
    return text.translate(_SHOWN)


class FtError(Exception):
    """Base of every error that is reported without a traceback of ours.

    Holds one or more problems; `exit_status` is the process's status (see the README's table).
    """

    exit_status = 1

    def __init__(self, what: str | Iterable[Problem], *, where: str = "", fix: str = "") -> None:
        if isinstance(what, str):
            self.problems: tuple[Problem, ...] = (Problem(what=what, where=where, fix=fix),)
        else:
            self.problems = tuple(what)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form, for handing the error from a rank to the launcher."""
        return {"kind": type(self).__name__, "problems": [asdict(problem) for problem in self.problems]}


class SpecError(FtError):
    """The spec, an option or a hostfile's use is wrong."""

    exit_status = 2


class ClusterError(FtError):
    """A host, a hostfile's content or a submission is wrong."""

    exit_status = 3


class DataError(FtError):
    """The data can't be trained on as given."""

    exit_status = 4


class CheckpointError(FtError):
    """A checkpoint or a run folder can't be used."""

    exit_status = 5


class TrainingError(FtError):
    """Training itself failed: non-finite values, ranks out of step, out of memory."""

    exit_status = 6


class DoesNotFitError(FtError):
    """The plan needs more memory than there is."""

    exit_status = 7


class PreemptedError(FtError):
    """Not a failure: the run was asked to stop, did so at an update boundary, and can go on from there."""

    exit_status = PREEMPTED


class StopSignalError(BaseException):
    """A signal asked work to stop that may stop anywhere: raised wherever the main thread is. No Exception, which somebody might catch and try again."""


_KINDS = {kind.__name__: kind for kind in (FtError, SpecError, ClusterError, DataError, CheckpointError, TrainingError, DoesNotFitError, PreemptedError)}


def error_from_dict(data: dict[str, Any]) -> FtError:
    """The inverse of `FtError.to_dict`; an unknown kind becomes a plain FtError."""
    kind = _KINDS.get(data["kind"], FtError)
    return kind([Problem(**problem) for problem in data["problems"]])
