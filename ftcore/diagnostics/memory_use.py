"""How much memory a process uses now, to a byte where the C library tells."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import torch

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class _MallInfo(ctypes.Structure):
    """struct mallinfo2 of glibc's malloc.h."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


def used_bytes() -> int:
    """Bytes in use now: allocated on the accelerator where there is one, else by this process on the host."""
    return int(torch.cuda.memory_allocated()) if torch.cuda.is_available() else host_bytes()


def host_bytes() -> int:
    """`anonymous_bytes` without what malloc holds free; malloc walks its free blocks for it, half a microsecond each.

    The resident set alone moves in steps: malloc serves what it can from holes, and asks for more only when they are full,
    so that a leak of some KiB an update is flat for dozens of updates. Under another allocator nothing is taken off.
    """
    return anonymous_bytes() - _free_in_malloc()


def anonymous_bytes() -> int:
    """The resident set without pages of files: the samples of an epoch are mapped, and fill up as they are read."""
    with open("/proc/self/statm", "rb") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * PAGE_BYTES


def _find_mallinfo() -> Callable[[], _MallInfo] | None:
    """glibc's mallinfo2; None before glibc 2.33 and in other C libraries."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = _MallInfo
    return function


_mallinfo = _find_mallinfo()


def _free_in_malloc() -> int:
    return int(_mallinfo().fordblks) if _mallinfo is not None else 0
