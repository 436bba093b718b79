"""Traces as torch's profiler writes them, made by hand: on a CPU with gloo, and on a GPU with kernels and their launches. Times in microseconds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]
ORIGIN = 5_176_183_000_000.0
"""Traces count from some moment before the process began."""


def event(category: str, name: str, start: float, end: float, thread: int = 1, **args: Any) -> Event:
    """A complete event; `args` as torch names them, with `_` for a space."""
    named = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": thread, "ts": ORIGIN + start, "dur": end - start, "args": named}


def update(number: int, start: float, end: float) -> Event:
    return event("user_annotation", f"ftlaunch: update {number}", start, end)


def phase(name: str, start: float, end: float) -> Event:
    return event("user_annotation", f"ftlaunch: {name}", start, end)


def operator(name: str, start: float, end: float, thread: int = 1, **args: Any) -> Event:
    return event("cpu_op", name, start, end, thread, **args)


def launch(correlation: int, start: float, end: float, name: str = "cudaLaunchKernel") -> Event:
    return event("cuda_runtime", name, start, end, correlation=correlation)


def kernel(name: str, start: float, end: float, correlation: int, external: int = -1, stream: int = 7) -> Event:
    """A kernel as of torch 2: with its correlation and the external id of the operator that launched it."""
    made = event("kernel", name, start, end, stream)
    made["args"] = {"External id": external, "device": 0, "stream": stream, "correlation": correlation, "grid": [8, 1, 1]}
    return made


def write_trace(path: Path, events: list[Event], *, rank: int = 0, host: str = "host", packed: bool = True) -> Path:
    """The file as torch lays it out, with what it holds beside complete events."""
    other = [
        {"ph": "M", "name": "process_name", "ts": ORIGIN, "pid": 7, "tid": 0, "args": {"name": "python"}},
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": ORIGIN},
        {"ph": "s", "id": 3, "pid": 7, "tid": 1, "ts": ORIGIN, "cat": "ac2g", "name": "ac2g"},
    ]
    head = {"schemaVersion": 1, "deviceProperties": [], "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}, "host_name": host}
    text = json.dumps({**head, "traceEvents": [*other, *events]}, indent=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path
