"""Everything about the host this runs on that a launch depends on. Standard library alone: hosts are sent this file."""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import platform
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from launcher.interfaces import interface_addresses
from launcher.preflight.accelerators import accelerator_facts
from launcher.preflight.code_digest import code_digest, find_root

FACTS_LIMIT_S = 7.0
"""Longest wait for the slowest fact."""

_LIBRARIES = {
    "torch": ("torch",),
    "deepspeed": ("deepspeed",),
    "transformers": ("transformers",),
    "peft": ("peft",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"),
}
"""Name in the report -> distributions that bring it, the first that is there counts."""


def gather(request: Mapping[str, Any]) -> dict[str, Any]:
    """All facts as JSON-ready values; `late` names those that took longer than 7 s (a hung file system, a name server that is silent)."""
    paths = [*request["python_path"], *sys.path]
    environment = {**os.environ, **request["environment"]}
    tasks: dict[str, Callable[[], dict[str, Any]]] = {
        "identity": _identity,
        "versions": lambda: {"versions": {name: _version(names, paths) for name, names in _LIBRARIES.items()}},
        "code": lambda: _code(request["import_root"], paths),
        "accelerators": lambda: accelerator_facts(environment),
        "machine": _machine,
        "interfaces": lambda: {"interfaces": interface_addresses()},
        "limits": _limits,
        **{f"folder {name}": _folder_task(name, path) for name, path in request["folders"].items()},
        **{f"name {name}": _name_task(name) for name in request["names"]},
    }
    return within(tasks, FACTS_LIMIT_S)


def within(tasks: Mapping[str, Callable[[], dict[str, Any]]], limit_s: float) -> dict[str, Any]:
    """What the tasks return, merged (dicts of one key too); each runs in a thread of its own.

    `late` names those that did not end in time, `failed` says of others why they could not.
    """
    done: dict[str, dict[str, Any]] = {}

    def run(name: str) -> None:
        try:
            done[name] = tasks[name]()
        except Exception as error:  # noqa: BLE001  one fact that can't be had must not hide the others
            done[name] = {"failed": {name: f"{type(error).__name__}: {error}"}}

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in tasks]
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    facts: dict[str, Any] = {"late": sorted(set(tasks) - set(done)), "failed": {}}
    for part in list(done.values()):
        for key, value in part.items():
            facts[key] = {**facts[key], **value} if isinstance(value, dict) and key in facts else value
    return facts


def _identity() -> dict[str, Any]:
    namespaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid", "uts")]
    return {
        "hostname": socket.gethostname(),
        "user": getpass.getuser(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        # The same for two names of one machine, and different for two containers on one.
        "identity": " ".join([_read("/proc/sys/kernel/random/boot_id"), *namespaces]),
        "reached_at": (os.environ.get("SSH_CONNECTION", "").split() + [""] * 4)[2],
    }


def _version(distributions: tuple[str, ...], paths: list[str]) -> str:
    """The version of the first of these that is installed; empty when none is."""
    for distribution in distributions:
        for found in importlib.metadata.distributions(name=distribution, path=paths):
            return found.version
    return ""


def _code(import_root: str, paths: list[str]) -> dict[str, Any]:
    root = find_root(import_root, paths)
    return {"code": code_digest(root) if root else "", "code_root": root}


def _machine() -> dict[str, Any]:
    memory = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in _read("/proc/meminfo").splitlines() if line.endswith("kB")}
    shm = os.statvfs("/dev/shm")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_total": memory.get("MemTotal", 0),
        "memory_available": memory.get("MemAvailable", 0),
        "shm_total": shm.f_blocks * shm.f_frsize,
        "shm_free": shm.f_bavail * shm.f_frsize,
        "infiniband": sorted(os.listdir("/sys/class/infiniband")) if os.path.isdir("/sys/class/infiniband") else [],
    }


def _limits() -> dict[str, Any]:
    kinds = {"nofile": resource.RLIMIT_NOFILE, "memlock": resource.RLIMIT_MEMLOCK, "nproc": resource.RLIMIT_NPROC}
    limits = {name: [None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(kind)] for name, kind in kinds.items()}
    return {"limits": limits, "is_root": os.geteuid() == 0}


def _folder_task(name: str, path: str) -> Callable[[], dict[str, Any]]:
    def look() -> dict[str, Any]:
        state: dict[str, Any] = {"path": path, "exists": os.path.isdir(path), "writable": os.access(path, os.W_OK | os.X_OK)}
        if state["exists"]:
            disk = os.statvfs(path)
            state |= {"free": disk.f_bavail * disk.f_frsize, "total": disk.f_blocks * disk.f_frsize}
        return {"folders": {name: state}}

    return look


def _name_task(name: str) -> Callable[[], dict[str, Any]]:
    def look() -> dict[str, Any]:
        return {"names": {name: resolve(name)}}

    return look


def resolve(name: str) -> list[str]:
    """The addresses of a name on this host, in its resolver's order; none for an unknown one."""
    try:
        return list(dict.fromkeys(str(each[4][0]) for each in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)))
    except (OSError, UnicodeError):
        return []


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read().strip()
