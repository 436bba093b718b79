"""What there is to hold a run: memory of an accelerator and of each host, disk for checkpoints; from the spec, from what hosts said, or from this machine."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.spec.host_memory import room_bytes
from ftcore.spec.resolved import Host, ResolvedSpec
from launcher.memory.accelerators import Accelerator, by_model, find_accelerator, local_accelerator
from launcher.topology import is_local

HostFacts = Mapping[str, Mapping[str, Any]]
"""Host's name -> what preflight heard from it (launcher.preflight.facts)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The room for a run; None: not known."""

    accelerator: Accelerator | None
    device_bytes: int | None
    """For the tensors of one rank, on the host where a rank has least."""
    device_origin: str
    """Where that is from, in words."""
    host_bytes: dict[str, int | None]
    """Host's name -> memory for the ranks on it."""
    disk_bytes: int | None
    """Free where the run folder lies or will lie."""

    @property
    def is_shared(self) -> bool:
        """Whether the ranks compute on the host, so that all of their memory is the host's."""
        return self.accelerator is not None and self.accelerator.is_host


def capacity_of(resolved: ResolvedSpec, *, gpu: str = "", folder: Path | None = None, facts: HostFacts | None = None) -> Capacity:
    """The room for a run in `folder`; `gpu` (--gpu) stands over hardware.accelerator, and both over what hosts said or this machine has.

    Raises SpecError for a name that the table does not have.
    """
    hardware, said = resolved.spec.hardware, facts or {}
    accelerator, origin = _accelerator(resolved, gpu, said)
    if accelerator is not None and hardware.memory and ":" not in gpu:
        accelerator = dataclasses.replace(accelerator, memory_bytes=hardware.memory)
        origin += ", hardware.memory"
    # A host that is planned for another machine says nothing of that one.
    is_named = bool(gpu or hardware.accelerator)
    hosts = {host.name: _host_bytes(resolved, host, said, is_named=is_named) for host in resolved.hosts}
    device = accelerator.usable_bytes if accelerator is not None else None
    if accelerator is not None and accelerator.is_host:
        shares = [(hosts[host.name] or accelerator.memory_bytes) // host.slots for host in resolved.hosts]
        device = min(shares)
    return Capacity(accelerator=accelerator, device_bytes=device or None, device_origin=origin, host_bytes=hosts, disk_bytes=_disk(folder))


def planned_elsewhere(resolved: ResolvedSpec) -> Capacity:
    """The room for a run on machines that can't be asked: what spec.hardware says, and nothing of this one. Raises SpecError as `capacity_of` does."""
    hardware = resolved.spec.hardware
    hosts = {host.name: hardware.host_memory for host in resolved.hosts}
    if not hardware.accelerator or hardware.accelerator == "cpu":
        return Capacity(accelerator=None, device_bytes=None, device_origin="not known", host_bytes=hosts, disk_bytes=None)
    return dataclasses.replace(capacity_of(resolved), host_bytes=hosts)


def _accelerator(resolved: ResolvedSpec, gpu: str, said: HostFacts) -> tuple[Accelerator | None, str]:
    if gpu:
        return find_accelerator(gpu, "--gpu"), "--gpu"
    if resolved.spec.hardware.accelerator:
        return find_accelerator(resolved.spec.hardware.accelerator), "hardware.accelerator"
    if all(is_local(host) for host in resolved.hosts):
        return local_accelerator(), "this machine"
    heard = [_heard(said[host.name]) for host in resolved.hosts if host.name in said]
    known = [each for each in heard if each is not None]
    if len(known) < len(resolved.hosts):
        return None, "not known: name it with --gpu or hardware.accelerator"
    return min(known, key=lambda each: each.memory_bytes), "what the hosts have"


def _heard(facts: Mapping[str, Any]) -> Accelerator | None:
    """The smallest accelerator a host told of; its own cores where it has none."""
    there = facts.get("accelerators") or []
    if not there and not facts.get("installed"):
        host = find_accelerator("cpu")
        return dataclasses.replace(host, memory_bytes=int(facts["memory_available"])) if facts.get("memory_available") else None
    known = [by_model(str(each.get("name", "")), each.get("memory_total")) for each in there]
    found = [each for each in known if each is not None]
    return min(found, key=lambda each: each.memory_bytes) if found and len(found) == len(known) else None


def _host_bytes(resolved: ResolvedSpec, host: Host, said: HostFacts, *, is_named: bool) -> int | None:
    given = resolved.spec.hardware.host_memory
    if given:
        return given
    if host.name in said and said[host.name].get("memory_available"):
        return int(said[host.name]["memory_available"])
    if is_named and resolved.spec.hardware.accelerator != "cpu":
        return None
    if not is_local(host):
        return None
    return room_bytes()


def _disk(folder: Path | None) -> int | None:
    """Bytes free for this user where `folder` lies, or the nearest folder above it that is there."""
    if folder is None:
        return None
    for path in (folder, *folder.parents):
        try:
            state = os.statvfs(path)
        except OSError:
            continue
        return state.f_bavail * state.f_frsize
    return None
