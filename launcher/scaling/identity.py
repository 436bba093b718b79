"""What the measurement of a point depends on, as plain values: equal ones need not be measured again, and unequal ones say what changed."""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import json
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ftcore.spec.data_paths import path_kind
from ftcore.spec.document import dotted, leaves
from ftcore.spec.lengths import file_state
from launcher.environment import import_root
from launcher.preflight.code_digest import code_digest
from launcher.scaling.points import Wanted
from launcher.scaling.request import ScaleRequest

LIBRARIES = ("torch", "deepspeed", "transformers")
IDENTITY_NAME = "scale_point.json"
"""In a point's run folder."""
_LEFT_OUT = ("hardware", "logging", "profiling", "evaluation")
"""Sections of the spec that no point's updates depend on."""
_CLUSTER = ("environment", "launcher", "interface")
"""What counts of the section `cluster`; the hosts stand beside it."""
MOST_TOLD = 3


def own_code() -> str:
    """A digest of ftlaunch's code."""
    return code_digest(import_root() or str(Path(__file__).resolve().parents[2]))


def library_versions() -> dict[str, str]:
    """Library -> its version, empty where it is not installed here."""
    return {name: _version(name) for name in LIBRARIES}


def identity_of(wanted: Wanted, request: ScaleRequest, code: str, libraries: dict[str, str]) -> dict[str, Any]:
    """Everything that the point's numbers depend on, JSON-ready."""
    spec = json.loads(json.dumps(dataclasses.asdict(wanted.cut.spec)))
    cluster = spec.pop("cluster")
    for section in _LEFT_OUT:
        spec.pop(section)
    hosts = {"job": wanted.ranks} if wanted.scheduler is not None else {host.name: host.slots for host in wanted.cut.hosts}
    return {
        "spec": {**spec, "cluster": {name: cluster[name] for name in _CLUSTER}},
        "hosts": hosts,
        "ranks": {"on": "CPU cores" if wanted.share.accelerators is None else "accelerators"},
        "windows": {"warm_up": request.warm_up, "count": request.windows, "updates": request.window_updates},
        "files": _files(wanted),
        "code": {"ftlaunch": code},
        "libraries": libraries,
    }


def key_of(identity: dict[str, Any]) -> str:
    """A digest of it; a number is the same with and without its point, as it is when a request is read again."""
    plain = json.loads(json.dumps(identity), parse_int=float)
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def differences(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What differs, in a few words; empty when nothing does."""
    old, new = _flat(before), _flat(after)
    changed = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    told = [_told(name, old.get(name), new.get(name)) for name in changed[:MOST_TOLD]]
    more = f" and {len(changed) - MOST_TOLD} more" if len(changed) > MOST_TOLD else ""
    return ", ".join(dict.fromkeys(told)) + more


def identity_text(identity: dict[str, Any]) -> str:
    """The content of a point's IDENTITY_NAME."""
    return json.dumps(identity, indent=2) + "\n"


def read_identity(folder: Path) -> dict[str, Any] | None:
    """What the point in this folder was measured with; None where it does not say."""
    try:
        found = json.loads((folder / IDENTITY_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _told(name: str, old: Any, new: Any) -> str:
    kind, _, rest = name.partition(".")
    if kind == "code":
        return "ftlaunch's own code"
    if kind == "files":
        return f"the file {rest}"
    label = rest if kind in ("spec", "libraries") else "ranks on" if name == "ranks.on" else name
    return f"{label} ({_short(old)} -> {_short(new)})"


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _flat(identity: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in identity.items() if key != "files"}
    files = identity.get("files")
    return {dotted(path): value for path, value in leaves(plain)} | {f"files.{name}": state for name, state in (files or {}).items()}


def _files(wanted: Wanted) -> dict[str, list[int]]:
    """What the spec names on this disk -> (bytes, time of the last change): its content may change under the same name, also that of one file of a folder."""
    spec = wanted.cut.spec
    data = [each.path for each in spec.data.all_sets.values() if path_kind(each.path) in ("local", "glob")]
    # Beside a model's files may lie what was trained from it, even this test: what is deeper than its own files is no part of it.
    models = (spec.model.model_name_or_path, spec.method.adapter_name_or_path)
    own = {name: os.path.join(glob.escape(name), "*.*") if os.path.isdir(name) else name for name in models}
    named = {**own, **{name: name for name in (*data, spec.data.chat_template)}}
    return {name: list(file_state(place)) for name, place in named.items() if os.path.isabs(name) and any(file_state(place))}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
