"""A run's folder: chosen, made, locked and filled. What lies where is `ftcore.spec.run_dir.RunDir`'s to say."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ftcore.spec.errors import CheckpointError, Problem
from ftcore.spec.run_dir import RunDir, write_atomic

LOCK_TRIES, LOCK_PAUSE_S = 5, 0.02
RUNS = "runs"
"""Folder for the runs that nobody named."""


def short_model_name(model_name_or_path: str) -> str:
    """The last part of a model's name, fit for a folder's name."""
    last = re.split(r"[/:]", model_name_or_path.rstrip("/"))[-1]
    stem = re.sub(r"\.(gguf|tar\.gz|zip)$", "", last, flags=re.IGNORECASE)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.")[:60] or "model"


def make_default_folder(root: Path, model_name_or_path: str, now: time.struct_time) -> RunDir:
    """A new folder `root/runs/YYYYmmdd-HHMMSS-MODEL`, as `make_timed_folder` makes it."""
    return make_timed_folder(root / RUNS, short_model_name(model_name_or_path), now)


def make_timed_folder(parent: Path, label: str, now: time.struct_time) -> RunDir:
    """A new folder `parent/YYYYmmdd-HHMMSS-LABEL`, with a number behind it when that is taken. Raises CheckpointError when it can't be made."""
    base = time.strftime("%Y%m%d-%H%M%S", now) + "-" + label
    folder, number = parent / base, 1
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=False)
            return RunDir(folder)
        except FileExistsError:
            number += 1
            folder = parent / f"{base}-{number}"
        except OSError as error:
            raise _cant_write(folder, error) from error


def make_named_folder(path: Path) -> RunDir:
    """The folder a user named, made if it is not there. Raises CheckpointError when it holds anything, or can't be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cant_write(path, error) from error
    run_dir = RunDir(path.absolute())
    require_unused(run_dir)
    return run_dir


def require_unused(run_dir: RunDir) -> None:
    """Raises CheckpointError when the folder holds a run, or anything else."""
    name = shown(run_dir.path)
    try:
        holds = {entry.name for entry in run_dir.path.iterdir()} - {run_dir.lock.name}
    except OSError as error:
        raise _cant_write(run_dir.path, error) from error
    if {run_dir.resolved.name, run_dir.checkpoints.name, run_dir.attempt_logs(1).parent.name} & holds:
        started = run_dir.metrics.name in holds or run_dir.checkpoints.name in holds
        anew = "" if started else f"; nothing was trained in it, so to start with another spec remove it (rm -r {name})"
        raise CheckpointError(f"{name} already holds a run", where="--output", fix=f"go on with it (ftlaunch --resume {name}), or choose another folder{anew}")
    if holds:
        raise CheckpointError(f"{name} is not empty and is no run's folder", where="--output", fix="choose an empty or a new folder")


def find_run(path: Path, where: str = "--resume") -> RunDir:
    """The folder of an earlier run, which the user gave at `where`. Raises CheckpointError when it holds none."""
    run_dir = RunDir(path.absolute())
    if not run_dir.path.is_dir():
        raise CheckpointError(f"there is no folder {path}", where=where, fix="name the run folder that ftlaunch printed")
    if not run_dir.resolved.is_file():
        raise CheckpointError(f"{path} holds no {run_dir.resolved.name}, so it is no run's folder", where=where, fix="name a folder ftlaunch made")
    return run_dir


@contextlib.contextmanager
def locked(run_dir: RunDir) -> Iterator[int]:
    """Owns the folder for one launch; gives the lock's descriptor, which a child may inherit to keep the folder owned while it lives.

    Raises CheckpointError when another launch owns it, naming that one's process.
    """
    try:
        handle = os.open(run_dir.lock, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise _cant_write(run_dir.lock, error) from error
    try:
        try:
            _lock(handle)
        except BlockingIOError as error:
            holder = os.read(handle, 200).decode(errors="replace").strip() or "a process that has not said its number yet"
            fix = "wait until it has ended, or end it"
            raise CheckpointError(f"{run_dir.path} is in use by another launch: {holder}", where=str(run_dir.path), fix=fix) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield handle
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    """Raises BlockingIOError when somebody keeps the lock: whoever looks at a run (`launcher.inspect.events.holder`) has it for an instant."""
    for _ in range(LOCK_TRIES - 1):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(LOCK_PAUSE_S)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write_files(files: Mapping[Path, str]) -> None:
    """Writes each file whole or not at all, in order; when one can't be written, takes back the new ones. Raises CheckpointError then."""
    written: list[Path] = []
    for path, text in files.items():
        is_new = not path.exists()
        try:
            write_atomic(path, text)
        except OSError as error:
            for earlier in written:
                earlier.unlink(missing_ok=True)
            raise _cant_write(path, error) from error
        if is_new:
            written.append(path)


def next_attempt(run_dir: RunDir) -> int:
    """The number of the next launch of this run, from 1."""
    logs = run_dir.attempt_logs(1).parent
    names = [entry.name for entry in logs.iterdir()] if logs.is_dir() else []
    numbers = [int(matched[1]) for name in names if (matched := re.fullmatch(r"attempt_([0-9]+)", name))]
    return max(numbers, default=0) + 1


def newest_checkpoint(run_dir: RunDir) -> Path | None:
    """The folder of the newest checkpoint that looks whole; None without one.

    Its manifest is of its update and its files have the sizes listed there. The digests are a resume's to check:
    reading gigabytes takes too long at the end of a launch.
    """
    folders = [path for path in run_dir.checkpoints.glob("update_*") if update_of(path) >= 0]
    return next((path for path in sorted(folders, key=update_of, reverse=True) if _looks_whole(path)), None)


def has_checkpoints(run_dir: RunDir) -> bool:
    """Whether anything is there that was a checkpoint once, damaged or set aside: a resume does not begin anew then."""
    return any(update_of(path.with_name(path.name.removesuffix(".broken"))) >= 0 for path in run_dir.checkpoints.glob("update_*"))


def update_of(checkpoint: Path) -> int:
    """How many updates were done when the checkpoint was written; -1 for a folder with another name."""
    matched = re.fullmatch(r"update_([0-9]{8,})", checkpoint.name)
    return int(matched[1]) if matched else -1


def _looks_whole(checkpoint: Path) -> bool:
    path = checkpoint / "manifest.json"
    # A pipe in its place would never end, nor would a device.
    if not path.is_file():
        return False
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        sizes = {entry["path"]: entry["bytes"] for entry in manifest["files"]}
        return manifest["update"] == update_of(checkpoint) and sizes != {} and all((checkpoint / path).stat().st_size == size for path, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def shown(path: Path) -> str:
    """A path as short as the current folder allows."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        # It lies elsewhere, or the current folder has been deleted.
        return str(path)


def _cant_write(path: Path, error: OSError) -> CheckpointError:
    where, fix = "--output", "free some space, or choose a folder that can be written to with -o"
    if RunDir(path.parent).resolved.is_file():
        # A run that is there can't be moved elsewhere by an option.
        where, fix = "--resume", "free some space, or make the run's folder one that this user can write to"
    return CheckpointError([Problem(what=f"can't write {path}: {error.strerror}", where=where, fix=fix)])
