"""Puts a run's new resolved spec in the place of the old one, so that a kill at any moment leaves a run that can go on."""

from __future__ import annotations

import json
import time
from pathlib import Path

from ftcore.spec.errors import CheckpointError
from ftcore.spec.resolved import ResolvedSpec, load_resolved
from ftcore.spec.run_dir import RunDir, fsync_path
from launcher.ds_config import render_ds_config
from launcher.events_file import append_event
from launcher.resuming import changes
from launcher.run_folder import next_attempt, shown, write_files
from launcher.unchanged import record_path, record_text


def change_run(run_dir: RunDir, before: ResolvedSpec, after: ResolvedSpec) -> None:
    """Replaces resolved.json, which is the moment of the change, and ds_config.json. The old ones stay as FILE.attempt_N.json.

    Raises CheckpointError when the folder can't be written to; the run is then as it was, or as it was to be.
    """
    old = {run_dir.resolved: _text(run_dir.resolved), run_dir.ds_config: _text(run_dir.ds_config)}
    new = {run_dir.resolved: after.to_json(), run_dir.ds_config: render_ds_config(after)}
    # Of a change that no launch followed, nothing is kept: the files of the last launch count.
    kept = {path: text for source, text in old.items() if not (path := kept_path(run_dir, source)).exists()}
    # Either spec is right from here on, so that each of the next steps leaves a run that goes on.
    write_files({**kept, record_path(run_dir): record_text(old) + record_text(new)})
    # Missing, it is written anew from resolved.json: never is one file the old run's and the other the new one's.
    run_dir.ds_config.unlink(missing_ok=True)
    fsync_path(run_dir.path)
    for path, text in new.items():
        write_files({path: text})


def settled_record(run_dir: RunDir) -> dict[Path, str]:
    """The record of digests with the files as they are now, to be written; empty when there is none, or it is so already."""
    path = record_path(run_dir)
    if not path.exists():
        return {}
    lines = _text(path).splitlines(keepends=True)
    now = record_text({file: _text(file) for file in (run_dir.ds_config, run_dir.resolved)}).splitlines(keepends=True)
    # A ds_config.json that an earlier ftlaunch wrote, or that was only laid out otherwise, keeps the digest of the start.
    return {path: "".join(now)} if len(lines) > len(now) else {}


def tell_change(run_dir: RunDir, now: ResolvedSpec) -> str:
    """What is other than in the last launch, for the terminal, and as an event in events.jsonl; empty when nothing is."""
    kept = kept_path(run_dir, run_dir.resolved)
    if not kept.exists():
        return ""
    try:
        last = load_resolved(kept)
    except CheckpointError:
        return f"\ngoes on in another way than before; {shown(kept)} is damaged and can't say which"
    differing = changes(last, now)
    if not differing:
        return ""
    stages, sizes = (last.spec.zero.stage, now.spec.zero.stage), (last.world_size, now.world_size)
    fields = {"world_size": sizes[1], "zero_stage": stages[1], "world_size_before": sizes[0], "zero_stage_before": stages[0]}
    append_event(run_dir, {"event": "resumed_with", "time": time.time(), **fields, "changed": differing}, next_attempt(run_dir))
    changed = "; ".join(f"{key} {_shown(old)} -> {_shown(new)}" for key, (old, new) in differing.items())
    return f"\nresumed with: {changed}"


def kept_path(run_dir: RunDir, path: Path) -> Path:
    """Where resolved.json or ds_config.json of the last launch is kept when this one changes them."""
    return path.with_name(f"{path.stem}.attempt_{max(1, next_attempt(run_dir) - 1)}.json")


def _shown(value: object) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        fix = "put the file back as it was; of one that keeps digests, remove it: changes since the start are not found then"
        raise CheckpointError("it is damaged: it is no text", where=shown(path), fix=fix) from error
    except OSError as error:
        raise CheckpointError(f"can't read {path}: {error.strerror}", where=shown(path), fix="make the file readable") from error
