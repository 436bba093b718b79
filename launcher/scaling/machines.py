"""What the hosts of a scaling test have: cores or accelerators, and so what a point's ranks share. Pure but for looking at this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.spec.errors import Problem, SpecError
from ftcore.spec.resolved import Host, ResolvedSpec
from launcher.node_environment import cores as own_cores
from launcher.topology import local_accelerators

MOST_A_CORE = 16
"""Ranks on a core that are measured: more of them say nothing, and take all memory."""
THREADS = "OMP_NUM_THREADS"
LOOK_S = 0.3
"""How long it is looked at what other processes do, before a point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The hosts that points may use."""

    hosts: tuple[Host, ...]
    cores: dict[str, int]
    """Host -> cores that ranks on it may use; a host that is not there is not known."""
    on_accelerators: bool
    is_here: bool
    """All ranks run on this machine, and no hostfile says how many there are room for."""

    @property
    def slots(self) -> int:
        """Ranks that the hosts are said to have room for."""
        return sum(host.slots for host in self.hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What the ranks of one point get of the machines."""

    accelerators: int | None
    cores: int | None
    """That they can keep busy; None: accelerators compute, or nobody knows."""
    oversubscribed: bool
    devices: int
    """What a bill would count: accelerators, or the ranks that cores have room for."""


def find_machines(resolved: ResolvedSpec, facts: Mapping[str, Mapping[str, Any]]) -> Machines:
    """The machines of a spec's hosts; `facts` are what preflight heard, empty when all ranks are here."""
    if not facts:
        here = {host.name: own_cores() for host in resolved.hosts}
        return Machines(hosts=resolved.hosts, cores=here, on_accelerators=local_accelerators() > 0, is_here=not resolved.spec.cluster.hosts)
    cores = {name: int(told["cores"]) for name, told in facts.items() if told.get("cores")}
    with_accelerators = any(told.get("accelerators") for told in facts.values()) and os.environ.get("DS_ACCELERATOR") != "cpu"
    return Machines(hosts=resolved.hosts, cores=cores, on_accelerators=with_accelerators, is_here=False)


def check_ranks(machines: Machines, ranks: tuple[int, ...]) -> None:
    """Raises SpecError with every number of ranks that the machines can't be asked for."""
    most, why, fix = machines.slots, "slots", "give fewer ranks, or more slots (--hosts)"
    if machines.is_here and machines.on_accelerators:
        most, why = local_accelerators(), "accelerators of this machine"
        fix = "an accelerator takes one rank: give fewer ranks, or more hosts (--hosts); --simulate says what more would do"
    elif machines.is_here:
        count = machines.cores[machines.hosts[0].name]
        most, why = MOST_A_CORE * count, f"ranks, {MOST_A_CORE} on each of the {count} cores of this machine"
        fix = "give fewer ranks, or more hosts (--hosts); --simulate says what more would do"
    problems = [Problem(what=f"{count} ranks are more than the {most} {why}", where="--ranks", fix=fix) for count in ranks if count > most]
    if problems:
        raise SpecError(problems)


def default_ranks(machines: Machines) -> tuple[int, ...]:
    """1, 2, 4, ... up to all slots, which come last whatever their number."""
    doubled = [1 << power for power in range(machines.slots.bit_length()) if 1 << power < machines.slots]
    return (*doubled, machines.slots)


def take_hosts(machines: Machines, ranks: int) -> tuple[Host, ...]:
    """The hosts of a point, filled one after the other; here, more ranks than slots are put on the one host."""
    from launcher.verify_loss_request import first_slots

    if machines.is_here and ranks > machines.slots:
        return (Host(name=machines.hosts[0].name, slots=ranks),)
    return first_slots(machines.hosts, ranks)


def threads_of(machines: Machines, most_ranks: int, asked: int | None, told: Mapping[str, str]) -> int | None:
    """OMP_NUM_THREADS of every rank of every point: as asked for, or `told` by the environment, else so that the largest point fills the cores.

    The same for all points: one rank that takes all cores leaves nothing to be gained. None next to accelerators, where nobody asks.
    """
    if asked is not None:
        return asked
    given = told.get(THREADS, "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    if machines.on_accelerators:
        return None
    shares = [machines.cores[host.name] // host.slots for host in take_hosts(machines, most_ranks) if host.name in machines.cores]
    return max(1, min(shares, default=1))


def share_of(machines: Machines, hosts: tuple[Host, ...], threads: int | None) -> Share:
    """What the ranks on `hosts` have to share."""
    ranks = sum(host.slots for host in hosts)
    if machines.on_accelerators:
        return Share(accelerators=ranks, cores=None, oversubscribed=False, devices=ranks)
    if any(host.name not in machines.cores for host in hosts):
        return Share(accelerators=None, cores=None, oversubscribed=False, devices=ranks)
    each = threads or 1
    used = sum(min(machines.cores[host.name], host.slots * each) for host in hosts)
    room = sum(min(host.slots, max(1, machines.cores[host.name] // each)) for host in hosts)
    crowded = any(host.slots * each > machines.cores[host.name] for host in hosts)
    return Share(accelerators=None, cores=used, oversubscribed=crowded, devices=room if crowded else ranks)


def busy_cores(stat: Path = Path("/proc/stat"), *, seconds: float = LOOK_S) -> float | None:
    """How many cores of this machine are busy, over so many seconds (proc_stat(5): user to steal without idle and iowait); None where nothing tells."""
    before = _ticks(stat)
    time.sleep(seconds)
    after = _ticks(stat)
    if before is None or after is None or after[1] <= before[1]:
        return None
    # The kernel's count of iowait may go back, and all time with it.
    share = min(1.0, max(0.0, (after[0] - before[0]) / (after[1] - before[1])))
    return share * (os.cpu_count() or 1)


def _ticks(stat: Path) -> tuple[int, int] | None:
    """(busy, all) of all cores together since the machine started."""
    try:
        numbers = [int(word) for word in stat.read_text(encoding="utf-8").splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    idle = sum(numbers[3:5])
    return sum(numbers) - idle, sum(numbers)
