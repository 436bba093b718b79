"""Which accelerators the ranks of a host see: the mask that a scheduler or the user has set is kept to, never widened. Standard library only."""

from __future__ import annotations

from ftcore.spec.errors import ClusterError


def device_mask(visible: str | None, devices: tuple[int, ...]) -> str | None:
    """CUDA_VISIBLE_DEVICES for a host's ranks, one entry a local rank; None: leave it as it is.

    `visible` is the host's own CUDA_VISIBLE_DEVICES (None: not set), `devices` the slots chosen on it, counted among the visible ones (empty: all).
    Entries stay as they are (numbers, GPU-... or MIG-... names). Raises ClusterError when a slot lies outside the mask: the device there is another job's.
    """
    if not devices:
        return None
    if visible is None:
        return ",".join(map(str, devices))
    entries = visible_entries(visible)
    beyond = [device for device in devices if device >= len(entries)]
    if beyond:
        has = f"{len(entries)} accelerators ({','.join(entries)})" if entries else "no accelerator"
        what = f"slot {', '.join(map(str, beyond))} is not among what CUDA_VISIBLE_DEVICES leaves to this run: {has}"
        raise ClusterError(what, where="CUDA_VISIBLE_DEVICES", fix=f"use slots {_slots(len(entries))}, or ask for more accelerators")
    return ",".join(entries[device] for device in devices)


def visible_entries(visible: str) -> list[str]:
    """The devices that a mask names, in its order. Like CUDA, stops at the first entry that names none (`-1`, an empty one, NoDevFiles)."""
    entries: list[str] = []
    for entry in (part.strip() for part in visible.split(",")):
        if not (entry.isascii() and entry.isdigit()) and not entry.startswith(("GPU-", "MIG-")):
            break
        entries.append(entry)
    return entries


def _slots(count: int) -> str:
    return "of another host" if count == 0 else "0" if count == 1 else f"0 to {count - 1}"
