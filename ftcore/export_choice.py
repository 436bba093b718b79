"""Which checkpoint of a run an export or an evaluation takes: the newest whole one, the best one, or that of an update."""

from __future__ import annotations

from pathlib import Path

from ftcore.checkpoint.find import Found, find_newest_whole
from ftcore.checkpoint.layout import checkpoint_path, newest_first
from ftcore.checkpoint.manifest import Manifest, damage, read_manifest
from ftcore.checkpoint.retention import best_of
from ftcore.spec.errors import CheckpointError
from ftcore.spec.events import emit
from ftcore.spec.run_dir import RunDir

NEWEST, BEST = "newest", "best"


def choose_checkpoint(run_dir: RunDir, which: str, *, purpose: str = "export") -> Found:
    """The checkpoint that `which` names (newest, best, or a number of updates), its digests verified.

    Raises CheckpointError when there is none or it is damaged, saying which there are; `purpose` is the verb of the user's command.
    """
    if which == NEWEST:
        return _newest(run_dir, purpose)
    path = _best(run_dir) if which == BEST else checkpoint_path(run_dir.checkpoints, int(which))
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        missing = not path.is_dir()
        what = f"there is no checkpoint after update {which}" if missing else f"{path.name} can't be taken: {error.problems[0].what}"
        raise CheckpointError(f"{what}; {existing(run_dir)}", where=str(run_dir.checkpoints), fix="name one of those with --update") from error
    wrong = damage(path, manifest.files)
    if wrong:
        what = f"{path.name} is damaged: {'; '.join(wrong)}; {existing(run_dir)}"
        raise CheckpointError(what, where=str(run_dir.checkpoints), fix="name another one with --update; ftlaunch checkpoints verify says which are whole")
    return Found(path, manifest)


def existing(run_dir: RunDir) -> str:
    """The checkpoints that are there, with their metrics, in words."""
    told = []
    for path, manifest in sorted(_manifests(run_dir.checkpoints).items()):
        metric = "" if manifest.metric is None else f" (metric {manifest.metric:.4g})"
        told.append(f"{int(path.name.removeprefix('update_'))}{metric}")
    return f"there are those of updates {', '.join(told)}" if told else "there are none"


def _newest(run_dir: RunDir, purpose: str) -> Found:
    search = find_newest_whole(run_dir.checkpoints)
    if search.found is None:
        reasons = "; ".join(search.skipped) or "none was saved"
        fix = "put the damaged files back: ftlaunch checkpoints verify says which" if newest_first(run_dir.checkpoints) else f"ftlaunch --resume {run_dir.path}"
        raise CheckpointError(f"no whole checkpoint to {purpose}: {reasons}", where=str(run_dir.checkpoints), fix=fix)
    for reason in search.skipped:
        emit("note", text=f"checkpoint skipped: {reason}; taking {search.found.path.name}")
    return search.found


def _best(run_dir: RunDir) -> Path:
    newest = next(iter(newest_first(run_dir.checkpoints)), None)
    best = best_of(newest) if newest is not None else None
    if best is None:
        fix = "name one with --update, or leave --best out for the newest; checkpoint.metric_for_best_model measures them in a new run"
        raise CheckpointError(f"no checkpoint has a metric, so none is best; {existing(run_dir)}", where=str(run_dir.checkpoints), fix=fix)
    return best


def _manifests(checkpoints: Path) -> dict[Path, Manifest]:
    sound = {}
    for path in newest_first(checkpoints):
        try:
            sound[path] = read_manifest(path)
        except CheckpointError:
            continue
    return sound
