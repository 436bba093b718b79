"""RUN/environment.json: what a launch ran with besides its spec, so that `ftlaunch diff` can tell two runs apart. Names of variables, never their values."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from launcher.approach import Approach
from launcher.environment import import_root
from launcher.forwarding import rank_variables
from launcher.preflight.facts import gather
from launcher.run_folder import write_files

ENVIRONMENT_VERSION = 1


def write_environment(run_dir: RunDir, resolved: ResolvedSpec, approach: Approach, variables: Mapping[str, str]) -> None:
    """Records this launch, over what an earlier one recorded. Raises CheckpointError when the folder can't be written to."""
    heard = dict(approach.facts)
    # Hosts that preflight did not ask are this machine.
    own = gather({"python_path": [], "environment": {}, "import_root": import_root(), "folders": {}, "names": []}) if len(heard) < len(resolved.hosts) else {}
    hosts = {host.name: heard.get(host.name, own) for host in resolved.hosts}
    names = sorted(rank_variables(os.environ, resolved.spec.cluster, variables))
    record = environment_record([(host.name, host.slots) for host in resolved.hosts], hosts, names)
    write_files({run_dir.environment: json.dumps({"version": ENVIRONMENT_VERSION, "time": time.time(), **record}, indent=2, ensure_ascii=False) + "\n"})


def environment_record(slots: list[tuple[str, int]], facts: Mapping[str, Mapping[str, Any]], variables: list[str]) -> dict[str, Any]:
    """What is kept of each host's facts (see `launcher.preflight.facts`); libraries and code are those of the first host's ranks, which preflight compares."""
    first = facts[slots[0][0]]
    return {
        "code": {"ftlaunch": _own_version(), "commit": commit_of(Path(str(first.get("code_root") or "/nowhere"))), "digest": first.get("code", "")},
        "python": first.get("python", ""),
        "machine": first.get("machine", ""),
        "libraries": first.get("versions", {}),
        "hosts": [
            {
                "name": name,
                "slots": count,
                "accelerators": [each["name"] for each in facts[name].get("accelerators", [])],
                "driver": facts[name].get("driver", ""),
            }
            for name, count in slots
        ],
        "variables": variables,
    }


def commit_of(root: Path) -> str:
    """The commit that a git checkout is at, read from its files; empty for any other folder. Whether files were changed since shows in the digest."""
    try:
        head = (root / ".git" / "HEAD").read_text(encoding="utf-8").strip()
        name = head.removeprefix("ref: ")
        if name == head:
            return head
        loose = root / ".git" / name
        if loose.is_file():
            return loose.read_text(encoding="utf-8").strip()
        packed = (root / ".git" / "packed-refs").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    return next((line.split(" ")[0] for line in packed if line.endswith(f" {name}")), "")


def _own_version() -> str:
    try:
        return version("ftlaunch")
    except PackageNotFoundError:
        return ""
