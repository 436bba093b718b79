"""Whether a run fits: what its ledger takes against what there is. Pure but for `require_fit`, which refuses (status 7)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ftcore.spec.errors import DoesNotFitError, Problem
from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.accelerators import GIB
from launcher.memory.capacity import Capacity
from launcher.memory.items import PHASES, Item, Ledger, held_in

HOST_WARNING = 0.9
"""Share of a host's memory from which on a run is warned of: the kernel's caches and other processes need some too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """One thing that is short."""

    place: str
    """device, host or disk."""
    what: str
    """In words, with both numbers and the largest items."""
    items: str
    """The groups that take most, with their shares."""
    fix: str
    needed_bytes: int
    there_bytes: int
    is_error: bool
    """It can't be held; else only the margin is touched."""

    @property
    def over_bytes(self) -> int:
        """Bytes too many; negative where only the margin is touched."""
        return self.needed_bytes - self.there_bytes


def shortages(resolved: ResolvedSpec, ledger: Ledger, capacity: Capacity) -> list[Shortage]:
    """All that is short, errors first: device memory of the heaviest rank, memory of each host, disk. What is not known is not judged."""
    found = [_device(resolved, ledger, capacity), *_hosts(resolved, ledger, capacity), _disk(ledger, capacity)]
    return sorted((each for each in found if each is not None), key=lambda each: not each.is_error)


def _device(resolved: ResolvedSpec, ledger: Ledger, capacity: Capacity) -> Shortage | None:
    if capacity.device_bytes is None or capacity.accelerator is None:
        return None
    needed, there = ledger.device_peak_bytes, capacity.device_bytes
    margin = resolved.spec.hardware.margin
    if needed <= there * (1 - margin):
        return None
    items = [item for item in ledger.items if item.place == "device" and held_in(item, ledger.peak_phase)]
    name = f"a rank's share of this host ({capacity.accelerator.name})" if capacity.is_shared else capacity.accelerator.name
    head = f"a rank takes {gib(needed)} on {name}, which has {gib(there)} ({capacity.device_origin})"
    if needed > there:
        what = f"{head}: {gib(needed - there)} over, {largest(items)}"
    else:
        what = f"{head}: {1 - needed / there:.0%} is left free, less than hardware.margin {margin:.0%}; {largest(items)}"
    fix = "ftlaunch plan --recommend lists what fits"
    return Shortage(place="device", what=what, items=largest(items), fix=fix, needed_bytes=needed, there_bytes=there, is_error=needed > there)


def _hosts(resolved: ResolvedSpec, ledger: Ledger, capacity: Capacity) -> list[Shortage | None]:
    return [_host(name, resolved, ledger, capacity) for name in capacity.host_bytes]


def _host(name: str, resolved: ResolvedSpec, ledger: Ledger, capacity: Capacity) -> Shortage | None:
    there = capacity.host_bytes[name]
    if there is None:
        return None
    slots = sum(host.slots for host in resolved.hosts if host.name == name)
    groups = _worst_moment(name, resolved, ledger, is_shared=capacity.is_shared)
    needed = groups.total()
    if needed <= there * HOST_WARNING:
        return None
    head = f"{name} needs {gib(needed)} of main memory for {slots} rank{'s' if slots > 1 else ''} and has {gib(there)}"
    what = f"{head}: {gib(needed - there)} over" if needed > there else f"{head}: {needed / there:.0%} of it"
    fix = "use fewer ranks on this host, a host with more memory, or no offload; hardware.host_memory says what a host has"
    most = _shares(groups)
    return Shortage(place="host", what=f"{what}, {most}", items=most, fix=fix, needed_bytes=needed, there_bytes=there, is_error=needed > there)


def _worst_moment(name: str, resolved: ResolvedSpec, ledger: Ledger, *, is_shared: bool) -> Counter[str]:
    """Group -> bytes in the main memory of one host, all its ranks together, in the phase that takes most; with `is_shared` what they compute on as well."""
    phases: dict[str, Counter[str]] = {phase: Counter() for phase in PHASES}
    for index, host in enumerate(resolved.hosts):
        here = [item for item in ledger.items if host.name == name and (item.place == "host" or (is_shared and item.place == "device"))]
        for item in (each for each in here if each.scope != "run" or index == 0):
            for phase in (each for each in PHASES if held_in(item, each)):
                phases[phase][item.group] += item.bytes * (host.slots if item.scope == "rank" else 1)
    return max(phases.values(), key=lambda groups: groups.total())


def _disk(ledger: Ledger, capacity: Capacity) -> Shortage | None:
    if capacity.disk_bytes is None or ledger.disk_bytes <= capacity.disk_bytes:
        return None
    needed, there = ledger.disk_bytes, capacity.disk_bytes
    items = [item for item in ledger.items if item.place == "disk"]
    what = f"checkpoints and the model take {gib(needed)} in the run folder, and {gib(there)} are free there: {gib(needed - there)} over, {largest(items)}"
    fix = "free some, put the run elsewhere (-o), or lower checkpoint.save_total_limit"
    return Shortage(place="disk", what=what, items=largest(items), fix=fix, needed_bytes=needed, there_bytes=there, is_error=True)


def largest(items: list[Item]) -> str:
    """The groups of items that take most, with their shares: `activations 61%, weights 22%`."""
    sums: Counter[str] = Counter()
    for item in items:
        sums[item.group] += item.bytes
    return _shares(sums)


def _shares(sums: Counter[str], count: int = 3) -> str:
    """Those of less than half a percent are left out."""
    total = sums.total()
    return ", ".join(f"{group} {size / total:.0%}" for group, size in sums.most_common(count) if size >= 0.005 * total) if total else "nothing known of it"


def gib(size: float) -> str:
    """Bytes in GiB or MiB, as far as it matters."""
    if abs(size) < GIB / 10:
        return f"{size / 2**20:.3g} MiB"
    return f"{size / GIB:.1f} GiB"


def require_fit(resolved: ResolvedSpec, ledger: Ledger, capacity: Capacity, advice: str = "") -> list[str]:
    """A warning for each margin that is touched. Raises DoesNotFitError with all that is short; `advice`: the best option that fits, the fix of memory."""
    found = shortages(resolved, ledger, capacity)
    errors = [each for each in found if each.is_error]
    if errors:
        where = {"device": "device memory", "host": "host memory", "disk": "disk"}
        force = "; --force launches it all the same"
        raise DoesNotFitError([Problem(what=each.what, where=where[each.place], fix=_fix(each, advice) + force) for each in errors])
    return [f"{each.what}; {each.fix}" for each in found]


def _fix(shortage: Shortage, advice: str) -> str:
    """No other split of the work makes room on a disk."""
    return shortage.fix if shortage.place == "disk" or not advice else advice
