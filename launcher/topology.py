"""What this machine is: its accelerators (found without torch), and which hosts of a run are this machine."""

from __future__ import annotations

import getpass
import itertools
import os
import re
import shutil
from pathlib import Path

from ftcore.spec.errors import ClusterError, Problem
from ftcore.spec.resolved import Host
from launcher.device_mask import visible_entries

CPU_RANKS = 2
"""Ranks on a machine without accelerators when nobody says how many."""


def local_slots() -> int:
    """Ranks that fit this machine: one for each accelerator this process may use, or 2 on a CPU."""
    return local_accelerators() or CPU_RANKS


def local_accelerators() -> int:
    """NVIDIA GPUs that this process may use; 0 when DeepSpeed is told to run on the CPU."""
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        return 0
    return count_visible(os.environ.get("CUDA_VISIBLE_DEVICES"), _installed_gpus())


def count_visible(visible: str | None, installed: int) -> int:
    """How many of `installed` GPUs CUDA_VISIBLE_DEVICES leaves; None means all. Like CUDA, stops at the first entry that names none."""
    if visible is None or installed == 0:
        return installed
    return sum(1 for _ in itertools.takewhile(lambda entry: not entry.isdigit() or int(entry) < installed, visible_entries(visible)))


def _installed_gpus(dev: Path = Path("/dev")) -> int:
    # The device files are what a container was given; /proc/driver/nvidia lists the whole machine.
    files = sum(1 for entry in dev.iterdir() if re.fullmatch(r"nvidia[0-9]+", entry.name))
    if files or shutil.which("nvidia-smi") is None:
        return files
    # Not at the top of the file, as socket below: `ftlaunch validate` needs neither on most machines.
    import subprocess

    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(1 for line in listing.splitlines() if line.startswith("GPU "))


def is_local(host: Host) -> bool:
    """Whether the host is this machine, reached as the user who is running now. Asks no name server."""
    if host.user and host.user != getpass.getuser():
        return False
    name, own = host.name.lower(), os.uname().nodename.lower()
    if name in {"localhost", "localhost.localdomain", own}:
        return True
    if "." not in name or "." not in own:
        return name.partition(".")[0] == own.partition(".")[0] or _is_own_address(name)
    return _is_own_address(name)


def _is_own_address(address: str) -> bool:
    """Whether an IP address is one of this machine's: only those can be bound. A name is not an address."""
    import socket

    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, address)
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((address, 0))
            return address not in {"0.0.0.0", "::"}
        except OSError:
            continue
    return False


def check_local_launch(hosts: tuple[Host, ...], accelerators: int) -> None:
    """Hosts that are all this machine. Raises ClusterError unless they are one line, with no more slots than its accelerators (0: it has none, any will do)."""
    if len(hosts) > 1:
        names = ", ".join(host.name for host in hosts)
        total = sum(host.slots for host in hosts)
        raise ClusterError(f"{names} are all this machine", where="cluster.hosts", fix=f"give it one line: `{hosts[0].name} slots={total}`")
    wanted = max(hosts[0].slot_ids, default=hosts[0].slots - 1) + 1
    if accelerators and wanted > accelerators:
        what = f"{hosts[0].name} has {accelerators} accelerators that this process may use; slot {wanted - 1} is not one of them"
        raise ClusterError([Problem(what=what, where="cluster.hosts", fix=f"use slots={accelerators} or fewer, counted from slot 0")])
