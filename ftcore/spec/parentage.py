"""What the kernel does with a process when its parent ends, for both sides of the contract. Linux only."""

from __future__ import annotations

import ctypes
import os

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signum: int) -> None:
    """Asks the kernel to send this process `signum` when the thread that started it ends; survives exec. Raises OSError for a signal that does not exist."""
    _prctl(_PR_SET_PDEATHSIG, "PR_SET_PDEATHSIG", int(signum))


def adopt_orphans(wanted: bool) -> None:
    """Whether processes below this one become its children when their own parent ends, instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, "PR_SET_CHILD_SUBREAPER", int(wanted))


def _prctl(option: int, name: str, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({name}) failed: {os.strerror(number)}")
