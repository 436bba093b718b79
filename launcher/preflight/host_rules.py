"""What each host must have by itself. Pure functions: its line of the hostfile and its facts -> findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ftcore.spec.resolved import Host
from launcher.preflight.finding import Finding, error, warning

Facts = Mapping[str, Any]

LEAST_FREE = 100 * 2**20
"""Bytes; with less not even the logs and the first small checkpoint can be written."""
WANTED_FREE = 5 * 2**30
"""Bytes; a full checkpoint takes 12 to 16 bytes a trained parameter: 5 GiB is one of a small model."""
LEAST_FILES, WANTED_FILES = 256, 1024
"""Open files of one process. A rank holds a socket for every other rank and group beside its shards and libraries."""
FILES_A_RANK = 8
"""Sockets and files that each rank of the run adds to every other one's."""
THREADS_A_RANK = 128
"""Processes and threads of one rank: OpenMP's, NCCL's, the tokenizer's."""
WANTED_SHM = 2**30
"""Bytes; NCCL exchanges through /dev/shm inside a host and fails where a container gives it docker's 64 MiB."""
WANTED_MEMORY = 2**30
"""Bytes a rank; the libraries alone take about as much."""
BUSY_SHARE = 0.1
"""Share of an accelerator's memory that is in use before we start any rank: another process has it."""


def host_findings(host: Host, facts: Facts, world_size: int) -> list[Finding]:
    """All that is wrong with one host that was reached."""
    return [
        *_unanswered(host, facts),
        *_slots(host, facts),
        *_busy(host, facts),
        *_memory(host, facts),
        *_folders(host, facts),
        *_limits(host, facts, world_size),
        *_versions_there(host, facts),
    ]


def wanted_accelerators(host: Host) -> int:
    """Accelerators the host must have for its slots to exist."""
    return max(host.slot_ids, default=host.slots - 1) + 1


def gib(size: float) -> str:
    """Bytes as GiB, or as MiB when they are few."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _unanswered(host: Host, facts: Facts) -> Iterator[Finding]:
    for name in facts["late"]:
        kind, _, which = name.partition(" ")
        if kind == "folder":
            what = f"{host.name}: the {which} folder did not answer in time; its file system hangs"
            yield error(host.name, "folders", what, f"see to the mount on {host.name} (df hangs there, too)")
        elif kind == "name":
            yield warning(host.name, "names", f"{host.name}: looking up '{which}' takes very long there", "see to the name servers in its /etc/resolv.conf")
        else:
            yield warning(host.name, name, f"{host.name}: its {name} could not be found out in time", "the host is very slow: see what loads it")
    for name, reason in facts["failed"].items():
        yield warning(host.name, name.partition(" ")[0], f"{host.name}: its {name} could not be found out: {reason}", "launching goes on without that check")


def _slots(host: Host, facts: Facts) -> Iterator[Finding]:
    if "accelerators" not in facts:
        return
    count, wanted = len(facts["accelerators"]), wanted_accelerators(host)
    if facts["accelerator_note"]:
        fix = f"call nvidia-smi on {host.name} and mend what it says"
        yield warning(host.name, "accelerators", f"{host.name}: its accelerators could not be asked: {facts['accelerator_note']}", fix)
    if count and wanted > count:
        masked = f" of its {facts['installed']} (CUDA_VISIBLE_DEVICES leaves no more)" if facts["installed"] > count else ""
        what = f"{host.name} has {wanted} slots, but {count} accelerators{masked} that a rank may use"
        yield error(host.name, "slots", what, f"write `{host.name} slots={count}`, or leave slots out with --include or --exclude")
    if not count and facts["installed"]:
        what = f"{host.name}: none of its {facts['installed']} accelerators may be used (DS_ACCELERATOR or CUDA_VISIBLE_DEVICES); its ranks run on the CPU"
        yield warning(host.name, "slots", what, "unset the variable there, unless that is meant")
    if not count and host.slots > facts.get("cores", host.slots):
        what = f"{host.name} has {host.slots} slots on {facts['cores']} CPU cores"
        yield warning(host.name, "slots", what, f"write slots={facts['cores']} or fewer: ranks share cores else")


def _busy(host: Host, facts: Facts) -> Iterator[Finding]:
    used = host.slot_ids or range(host.slots)
    for place, each in enumerate(facts.get("accelerators", ())):
        total, free = each["memory_total"], each["memory_free"]
        if place in used and total and free is not None and total - free > BUSY_SHARE * total:
            what = f"{host.name}: accelerator {each['index']} has {gib(free)} of {gib(total)} free; another process uses it"
            fix = f"see whose it is (nvidia-smi on {host.name}), or leave the slot out with --exclude {host.name}:{place}"
            yield warning(host.name, "accelerators", what, fix)


def _memory(host: Host, facts: Facts) -> Iterator[Finding]:
    available = facts.get("memory_available")
    if available is not None and available < WANTED_MEMORY * host.slots:
        what = f"{host.name} has {gib(available)} of memory left for {host.slots} ranks"
        yield warning(host.name, "memory", what, "end what uses it, or give the host fewer slots")
    shm = facts.get("shm_total")
    if shm is not None and shm < WANTED_SHM and host.slots > 1 and facts.get("accelerators"):
        what = f"{host.name}: /dev/shm has {gib(shm)}; NCCL exchanges through it inside a host"
        yield warning(host.name, "shm", what, "start the container with --shm-size=8g or --ipc=host, or mount -o remount,size=8G /dev/shm")


def _folders(host: Host, facts: Facts) -> Iterator[Finding]:
    for name, folder in facts.get("folders", {}).items():
        title = {"run": "the run folder's place", "cache": "the cache"}.get(name, "the working folder")
        if not folder["exists"]:
            fix = "make it there, or use a path that is on a disk which all hosts share"
            yield error(host.name, "folders", f"{host.name} has no folder {folder['path']} ({title})", fix)
        elif name != "work" and not folder["writable"]:
            fix = f"allow this user to write there, or choose another place ({'FTLAUNCH_CACHE' if name == 'cache' else '--output'})"
            yield error(host.name, "folders", f"{host.name}: {folder['path']} ({title}) can't be written to by {facts.get('user', 'this user')}", fix)
        elif name != "work" and folder["free"] < WANTED_FREE:
            level = error if folder["free"] < LEAST_FREE else warning
            yield level(host.name, "disk", f"{host.name}: {folder['path']} ({title}) has {gib(folder['free'])} free", "free some space, or choose another disk")


def _limits(host: Host, facts: Facts, world_size: int) -> Iterator[Finding]:
    limits = facts.get("limits")
    if limits is None:
        return
    files, wanted = limits["nofile"][0], max(WANTED_FILES, LEAST_FILES + FILES_A_RANK * world_size)
    if files is not None and files < wanted:
        level = error if files < LEAST_FILES else warning
        what = f"{host.name}: a process may open {files} files (ulimit -n); {wanted} are wanted for {world_size} ranks"
        yield level(host.name, "limits", what, "raise `nofile` in its /etc/security/limits.conf, or LimitNOFILE of its sshd or slurmd")
    locked = limits["memlock"][0]
    if facts.get("infiniband") and facts.get("accelerators") and locked is not None:
        what = f"{host.name}: memory that may be locked is limited to {gib(locked)} (ulimit -l); RDMA over {facts['infiniband'][0]} needs it without a limit"
        yield warning(host.name, "limits", what, "set `memlock unlimited` in its /etc/security/limits.conf, or LimitMEMLOCK=infinity of its sshd or slurmd")
    threads = limits["nproc"][0]
    if threads is not None and threads < THREADS_A_RANK * host.slots and not facts["is_root"]:
        takes = f"{host.slots} ranks take up to {THREADS_A_RANK * host.slots}"
        what = f"{host.name}: {facts.get('user', 'this user')} may have {threads} processes and threads (ulimit -u); {takes}"
        yield warning(host.name, "limits", what, "raise `nproc` in its /etc/security/limits.conf")


def _versions_there(host: Host, facts: Facts) -> Iterator[Finding]:
    versions = facts.get("versions")
    if versions is None:
        return
    missing = [name for name in ("torch", "deepspeed", "transformers") if not versions[name]]
    if missing:
        what = f"{host.name}: {facts.get('executable', 'its python')} has no {', no '.join(missing)}"
        yield error(host.name, "versions", what, "install the same environment there as on the other hosts")
