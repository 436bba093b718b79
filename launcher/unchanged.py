"""That a run goes on as it was started: resolved.json and ds_config.json are compared with what was written at its start."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ftcore.spec.errors import CheckpointError, Problem
from ftcore.spec.resolved import ResolvedSpec, load_resolved
from ftcore.spec.run_dir import RunDir
from launcher.ds_config import render_ds_config
from launcher.run_folder import shown, write_files

_FIX = "put the file back as it was, or start a new run (-o) with the value you want"
_MOST_KEYS = 8
"""Differing keys that are named."""


def record_path(run_dir: RunDir) -> Path:
    """The file that keeps the digests, in the form that `sha256sum --check` reads."""
    return run_dir.path / ".sha256"


def record_text(files: dict[Path, str]) -> str:
    """The content of that file for these files and their texts."""
    return "".join(f"{_digest(text.encode())}  {path.name}\n" for path, text in files.items())


def load_unchanged(run_dir: RunDir) -> ResolvedSpec:
    """The run's resolved.json. Raises CheckpointError when it is damaged or not what the run was started with, or ranks can't write their lines."""
    _require_lines(run_dir)
    resolved = load_resolved(run_dir.resolved)
    started_with = _recorded(run_dir).get(run_dir.resolved.name)
    if started_with is not None and _digest(_read(run_dir.resolved)) not in started_with:
        what = "it was changed since the run was started, and a run goes on as it is"
        raise CheckpointError(what, where=shown(run_dir.resolved), fix=_FIX)
    return resolved


def _require_lines(run_dir: RunDir) -> None:
    """Raises CheckpointError where something else lies in the place of a file that grows by lines: at a pipe a rank would stand still."""
    grow = (run_dir.events, run_dir.metrics, *sorted(run_dir.rank_metrics(0).parent.glob("rank_*.jsonl")))
    odd = [path for path in grow if path.exists() and not path.is_file()]
    if odd:
        fix = "move it away; the run goes on without what it held"
        raise CheckpointError([Problem(what="a folder, a pipe or a device lies in the file's place", where=shown(path), fix=fix) for path in odd])


def require_ds_config(run_dir: RunDir, resolved: ResolvedSpec) -> None:
    """Writes ds_config.json anew where it is missing. Raises CheckpointError when it differs from what resolved.json asks for, with the keys."""
    path, rendered = run_dir.ds_config, render_ds_config(resolved)
    if not path.exists():
        write_files({path: rendered})
        return
    raw = _read(path)
    # A later ftlaunch may render another text: the one from the start stays right.
    if _digest(raw) in _recorded(run_dir).get(path.name, ()):
        return
    try:
        keys = differing_keys(json.loads(raw), json.loads(rendered))
    except (ValueError, RecursionError) as error:
        fix = "remove the file, and it is written anew"
        raise CheckpointError("it is damaged: it is not JSON", where=shown(path), fix=fix) from error
    if keys:
        more = f" and {len(keys) - _MOST_KEYS} more" if len(keys) > _MOST_KEYS else ""
        what = f"it differs from what the run was started with: {', '.join(keys[:_MOST_KEYS])}{more}"
        raise CheckpointError(what, where=shown(path), fix=f"{_FIX}; removed, the file is written anew")


def differing_keys(one: Any, other: Any, above: str = "") -> list[str]:
    """The dotted keys whose values differ, or that only one of the two has."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return [] if type(one) is type(other) and one == other else [above or "the whole file"]
    differing: list[str] = []
    for key in sorted(one.keys() | other.keys()):
        name = f"{above}.{key}" if above else key
        differing += differing_keys(one[key], other[key], name) if key in one and key in other else [name]
    return differing


def _recorded(run_dir: RunDir) -> dict[str, list[str]]:
    """File name -> digests, two while a change is under way; empty for a run whose record is gone, of which less can be checked."""
    path = record_path(run_dir)
    recorded: dict[str, list[str]] = {}
    for line in _read(path).decode(errors="replace").splitlines() if path.exists() else []:
        digest, _, name = line.partition("  ")
        recorded.setdefault(name, []).append(digest)
    return recorded


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"can't read {path}: {error.strerror}", where=shown(path), fix="make the file readable") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
