"""Memory that ran out, in whatever words it is told, as an error with the numbers seen. Standard library only: there may be no memory to import with."""

from __future__ import annotations

import errno
import os
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from ftcore.spec.errors import TrainingError
from ftcore.spec.host_memory import available_bytes, cgroup_limit, table_bytes

GIB = 2**30
_NO_MEMORY = os.strerror(errno.ENOMEM)
_ON_DEVICE = ("CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_ON_HOST = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "std::bad_alloc", _NO_MEMORY)
_ASKED_FOR = re.compile(r"(?:tried to allocate|Unable to allocate|unable to mmap) (?P<count>[\d.]+) (?P<unit>bytes|[KMGT]iB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_PHASES = {
    "token_loss_sum": "forward",
    "backward": "backward",
    "step": "optimizer",
    "build_engine": "load",
    "build_model": "load",
    "evaluate_sets": "evaluation",
}
"""Functions of the core -> what a rank is at while it is in them."""
_MICRO_STEP = "segment_lengths"
"""What tells a micro-step from other values of a function."""
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


def out_of_memory_facts(error: BaseException) -> dict[str, Any]:
    """The same in numbers, for whoever looks for the cause; empty for another error. A key is missing where nothing is known of it:

    asked_bytes, resident_bytes, limit_bytes, available_bytes, allocated_bytes and reserved_bytes (of an accelerator's allocator), device_bytes,
    phase, and of the micro-step that was computed micro_step, segments (tokens of its samples) and supervised_tokens.
    """
    chain = [error, *_causes(error)]
    first = next((each for each in reversed(chain) if describe_out_of_memory(each) is not None), None)
    if first is None:
        return {}
    limits = [limit for _, limit, _ in _limits()]
    seen = {
        "asked_bytes": _asked_bytes(str(first)),
        "resident_bytes": table_bytes(Path("/proc/self/status"), "VmRSS"),
        "limit_bytes": min(limits, default=None),
        "available_bytes": available_bytes(),
        **_on_accelerator(),
        **_place(first),
    }
    return {name: value for name, value in seen.items() if value is not None}


def _causes(error: BaseException) -> Iterator[BaseException]:
    while (cause := error.__cause__) is not None:
        yield (error := cause)


def _on_accelerator() -> dict[str, int | None]:
    """What torch's allocator holds; nothing where torch is not imported or computes on the host."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return {}
    return {
        "allocated_bytes": int(torch.cuda.memory_allocated()),
        "reserved_bytes": int(torch.cuda.memory_reserved()),
        "device_bytes": int(torch.cuda.mem_get_info()[1]),
    }


def _place(error: BaseException) -> dict[str, Any]:
    """The phase in which an error came up, and the micro-step that was computed: from the functions that it passed through."""
    found: dict[str, Any] = {}
    trace = error.__traceback__
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        if "ftcore" in Path(frame.f_code.co_filename).parts:
            phase = _PHASES.get(frame.f_code.co_name)
            found |= ({"phase": phase} if phase else {}) | _micro_step(frame)
    return found


def _micro_step(frame: FrameType) -> dict[str, Any]:
    if frame.f_code.co_name != "run_update":
        return {}
    held, index = frame.f_locals.get("held"), frame.f_locals.get("index")
    if held is None or not hasattr(held, _MICRO_STEP):
        return {}
    return {"micro_step": index, "segments": sorted(map(int, held.segment_lengths), reverse=True), "supervised_tokens": int(held.supervised_tokens)}


def asked_for(text: str) -> str:
    """The size that an allocator's message says was asked for, for people; empty where it says none."""
    asked = _asked_bytes(text)
    return _size(asked) if asked is not None else ""


def _asked_bytes(text: str) -> int | None:
    found = _ASKED_FOR.search(text)
    return int(float(found["count"]) * _UNITS[found["unit"].lower()]) if found else None


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
