"""The accelerators of the host this runs on, found without torch. Standard library alone: hosts are sent this file."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from typing import Any

QUERY_TIMEOUT_S = 6.0
_FIELDS = "index,uuid,name,memory.total,memory.free,driver_version"
_MIB = 2**20


def accelerator_facts(environment: Mapping[str, str]) -> dict[str, Any]:
    """`accelerators`: those that a rank with these variables may use; `installed`: how many there are; `driver`; `accelerator_note`: what went wrong."""
    installed, driver, note = _query()
    if environment.get("DS_ACCELERATOR") == "cpu":
        usable: list[dict[str, Any]] = []
    else:
        places = visible(environment.get("CUDA_VISIBLE_DEVICES"), [each["uuid"] for each in installed])
        usable = [_unnamed(-1) if place is None else installed[place] for place in places]
    return {"accelerators": usable, "installed": len(installed), "driver": driver, "accelerator_note": note}


def visible(mask: str | None, uuids: list[str]) -> list[int | None]:
    """Places of the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; no mask means all, and a part of a GPU (MIG) has no place: None.

    Like CUDA, stops at the first entry that names none.
    """
    if mask is None:
        return list(range(len(uuids)))
    places: list[int | None] = []
    for entry in (part.strip() for part in mask.split(",")):
        if entry.startswith("MIG-"):
            places.append(None)
            continue
        if entry.isascii() and entry.isdigit():
            found = [int(entry)] if int(entry) < len(uuids) else []
        else:
            found = [place for place, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
        if len(found) != 1 or found[0] in places:
            break
        places.append(found[0])
    return places


def parse_query(text: str) -> tuple[list[dict[str, Any]], str]:
    """The GPUs in nvidia-smi's answer, and the driver's version; memory in bytes, None where nvidia-smi gives no number."""
    gpus, driver = [], ""
    for line in text.splitlines():
        fields = [part.strip() for part in line.split(",")]
        if len(fields) != len(_FIELDS.split(",")) or not fields[0].isdigit():
            continue
        total, free = (int(part) * _MIB if part.isdigit() else None for part in fields[3:5])
        gpus.append({"index": int(fields[0]), "uuid": fields[1], "name": fields[2], "memory_total": total, "memory_free": free})
        driver = fields[5]
    return gpus, driver


def _query() -> tuple[list[dict[str, Any]], str, str]:
    """GPUs, driver version, and what went wrong (empty: nothing)."""
    argv = ["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        ended = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=False)
        gpus, driver = parse_query(ended.stdout)
        note = "" if ended.returncode == 0 else f"nvidia-smi: {(ended.stdout + ended.stderr).strip() or ended.returncode}"
    except FileNotFoundError:
        gpus, driver, note = [], "", ""
    except (OSError, subprocess.TimeoutExpired) as error:
        gpus, driver, note = [], "", f"nvidia-smi: {error}"
    if not gpus:
        gpus = [_unnamed(number) for number in _device_files()]
    return gpus, driver or _proc_driver(), note


def _unnamed(number: int) -> dict[str, Any]:
    return {"index": number, "uuid": f"nvidia{number}", "name": "NVIDIA GPU", "memory_total": None, "memory_free": None}


def _device_files() -> list[int]:
    # What a container was given; /proc/driver/nvidia lists the whole machine.
    return sorted(int(name[6:]) for name in os.listdir("/dev") if re.fullmatch(r"nvidia[0-9]+", name))


def _proc_driver() -> str:
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            found = re.search(r"\b[0-9]+\.[0-9]+(\.[0-9]+)?\b", file.read())
    except OSError:
        return ""
    return found[0] if found else ""
