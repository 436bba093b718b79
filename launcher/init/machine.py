"""What this machine offers a new spec: accelerators, hostfiles and models."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.spec.errors import ClusterError
from launcher.hostfile import read_hostfile
from launcher.memory.config_file import hub_cache
from launcher.preflight.accelerators import accelerator_facts

JOB_HOSTFILE = Path("/job/hostfile")
"""Where DeepSpeed looks for one."""
MOST_MODELS = 30
DEMO_MODEL, DEMO_DATA, DEMO_EVAL = "builtin:tiny-llama", "builtin:extraction/train", "builtin:extraction/eval"


@dataclass(frozen=True, slots=True)
class Hostfile:
    """A hostfile that was found."""

    path: str
    note: str
    """Its hosts and slots, or what is wrong with it."""
    is_right: bool


def accelerators() -> list[dict[str, Any]]:
    """The accelerators that ranks here would use, each with `name` and `memory_total` (bytes, or None)."""
    found: list[dict[str, Any]] = accelerator_facts(os.environ)["accelerators"]
    return found


def described_accelerators(found: list[dict[str, Any]]) -> str:
    """`2 x NVIDIA H100 80GB HBM3 (79.6 GiB each)`, or that there are none."""
    if not found:
        return "no accelerators: ranks run on the CPU"
    kinds = Counter((each["name"], each["memory_total"]) for each in found)
    return ", ".join(f"{count} x {name}" + (f" ({total / 2**30:.1f} GiB each)" if total else "") for (name, total), count in kinds.items())


def half_type(found: list[dict[str, Any]]) -> str:
    """train.precision for these accelerators: bf16, or fp16 where all of them have tensor cores for that alone (T4, V100)."""
    from launcher.memory.accelerators import by_model

    known = [by_model(str(each["name"]), each["memory_total"]) for each in found]
    return "fp16" if known and all(each is not None and each.fp16_flops > 2 * each.bf16_flops for each in known) else "bf16"


def find_hostfiles(root: Path, job: Path = JOB_HOSTFILE) -> list[Hostfile]:
    """`root/hostfile`, `root/hostfiles/*` and /job/hostfile, as far as they are there."""
    try:
        inside = sorted(path for path in (root / "hostfiles").iterdir() if path.is_file() and not path.name.startswith(("_", ".")))
    except OSError:
        inside = []
    places = [(root / "hostfile", "hostfile"), *((path, f"hostfiles/{path.name}") for path in inside), (job, str(job))]
    return [_look_at(path, name) for path, name in places if path.is_file()]


def _look_at(path: Path, name: str) -> Hostfile:
    try:
        hosts = read_hostfile(path)
    except ClusterError as error:
        return Hostfile(name, f"not usable: {error.problems[0].what}", False)
    slots = sum(host.slots for host in hosts)
    return Hostfile(name, f"{len(hosts)} host{'s' * (len(hosts) != 1)}, {slots} ranks", True)


def find_models(root: Path) -> list[str]:
    """Folders with a config.json and .gguf files in `root` and `root/models`, then what the hub's cache holds whole enough to be loaded."""
    found: list[str] = []
    for folder in ("", "models"):
        try:
            entries = sorted((root / folder).iterdir())
        except OSError:
            continue
        found += [str(Path(folder, entry.name)) for entry in entries if (entry.suffix == ".gguf" and entry.is_file()) or _is_model(entry)]
    # A bare folder name could be taken for a hub id.
    local = [name if name.endswith(".gguf") else f"./{name}" for name in found]
    return (local + _cached())[:MOST_MODELS]


def _is_model(folder: Path) -> bool:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "model_type" in config


def _cached() -> list[str]:
    """Hub ids whose newest snapshot has a config.json and weights."""
    names = []
    for repository in sorted(hub_cache().glob("models--*")):
        snapshots = list(repository.glob("snapshots/*/config.json"))
        if any(list(config.parent.glob("*.safetensors")) or list(config.parent.glob("*.bin")) for config in snapshots):
            names.append(repository.name.removeprefix("models--").replace("--", "/"))
    return names
