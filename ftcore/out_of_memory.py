"""Memory that ran out, in whatever words it is told, as an error with the numbers seen. Standard library only: there may be no memory to import with."""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from ftcore.spec.errors import TrainingError
from ftcore.spec.host_memory import available_bytes, cgroup_limit, table_bytes

GIB = 2**30
_NO_MEMORY = os.strerror(errno.ENOMEM)
_ON_DEVICE = ("CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_ON_HOST = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "std::bad_alloc", _NO_MEMORY)
_ASKED_FOR = re.compile(r"(?:tried to allocate|Unable to allocate|unable to mmap) (?P<count>[\d.]+) (?P<unit>bytes|[KMGT]iB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
LESS_MEMORY = "lower batch.micro_batch_tokens, turn on train.gradient_checkpointing, use a higher zero.stage or more ranks"


def describe_out_of_memory(error: BaseException) -> TrainingError | None:
    """The error with what was asked for, what there was and what helps, if it says that memory ran out; else None."""
    text = str(error)
    if type(error).__name__ == "OutOfMemoryError" or (isinstance(error, RuntimeError) and any(words in text for words in _ON_DEVICE)):
        fix = f"{LESS_MEMORY}, or set zero.offload_optimizer: cpu"
        return TrainingError(f"out of memory on the accelerator: {_first_sentences(text)}", where="memory", fix=fix)
    on_host = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    if not on_host and not (isinstance(error, Exception) and any(words in text for words in _ON_HOST)):
        return None
    seen = [f"{asked} asked for"] if (asked := asked_for(text)) else []
    limits = list(_limits())
    seen += [f"this process holds {_size(held)}"] if (held := table_bytes(Path("/proc/self/status"), "VmRSS")) else []
    seen += [f"{name} is {_size(limit)}" for name, limit, _ in limits]
    seen += [f"{_size(free)} are free on the host"] if (free := available_bytes()) else []
    fix = ", ".join([LESS_MEMORY, "start fewer ranks on this host", *(f"or raise the limit ({how})" for _, _, how in limits[:1])])
    return TrainingError(f"out of memory: {'; '.join(seen)} ({_first_sentences(text) or type(error).__name__})", where="memory", fix=fix)


def asked_for(text: str) -> str:
    """The size that an allocator's message says was asked for, for people; empty where it says none."""
    found = _ASKED_FOR.search(text)
    return _size(int(float(found["count"]) * _UNITS[found["unit"].lower()])) if found else ""


def _first_sentences(text: str) -> str:
    """The message without the stack of C++ calls that torch may add."""
    return text.split("\nException raised from", maxsplit=1)[0].strip()[:600]


def _limits() -> Iterator[tuple[str, int, str]]:
    """Name, bytes and how to raise it, of each limit on this process's memory."""
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        yield "the limit on its address space", address_space, "ulimit -v"
    group = cgroup_limit()
    if group is not None:
        yield "the limit of its control group", group, "memory.max of the container or the job"


def _size(count: int) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB / 10 else f"{count / 2**20:.1f} MiB"
