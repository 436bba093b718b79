"""Facts of hosts as a probe would tell them, for the tests of what is made of them."""

from __future__ import annotations

import copy
from typing import Any

from ftcore.spec.resolved import Host

GIB = 2**30

_FACTS: dict[str, Any] = {
    "late": [],
    "failed": {},
    "hostname": "alpha",
    "user": "trainer",
    "python": "3.11.7",
    "executable": "/opt/env/bin/python",
    "machine": "x86_64",
    "identity": "alpha",
    "reached_at": "10.0.0.1",
    "cores": 8,
    "memory_total": 64 * GIB,
    "memory_available": 60 * GIB,
    "shm_total": 32 * GIB,
    "shm_free": 32 * GIB,
    "infiniband": [],
    "interfaces": {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.1"]},
    "limits": {"nofile": [65536, 65536], "memlock": [None, None], "nproc": [None, None]},
    "is_root": False,
    "folders": {
        "work": {"path": "/data/work", "exists": True, "writable": True, "free": 900 * GIB, "total": 999 * GIB},
        "run": {"path": "/data/runs", "exists": True, "writable": True, "free": 900 * GIB, "total": 999 * GIB},
        "cache": {"path": "/data/cache", "exists": True, "writable": True, "free": 900 * GIB, "total": 999 * GIB},
    },
    "names": {},
    "accelerators": [],
    "installed": 0,
    "driver": "",
    "accelerator_note": "",
    "versions": {"torch": "2.13.0", "deepspeed": "0.19.8", "transformers": "5.24.0", "peft": "0.21.2", "nccl": "2.28"},
    "code": "0123456789abcdef",
    "code_root": "/data/ftlaunch",
}


def facts(name: str = "alpha", number: int = 1, **changes: Any) -> dict[str, Any]:
    """A healthy host without accelerators; `changes` replace what it says, dicts key by key."""
    told = copy.deepcopy(_FACTS)
    told |= {"hostname": name, "identity": name, "reached_at": f"10.0.0.{number}"}
    told["interfaces"]["eth0"] = [f"10.0.0.{number}"]
    for key, value in changes.items():
        told[key] = {**told[key], **value} if isinstance(value, dict) and isinstance(told[key], dict) else value
    return told


def gpus(count: int, model: str = "NVIDIA H200", free: int = 139 * GIB) -> dict[str, Any]:
    """What a host with GPUs says of them."""
    each = [{"index": place, "uuid": f"GPU-{place}", "name": model, "memory_total": 140 * GIB, "memory_free": free} for place in range(count)]
    return {"accelerators": each, "installed": count, "driver": "580.1"}


def host(name: str = "alpha", slots: int = 2, *ids: int) -> Host:
    """A line of a hostfile."""
    return Host(name=name, slots=slots, slot_ids=ids)
