"""Every path of a run's folder, and the one way to write a file there whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True, slots=True)
class RunDir:
    """RUN and what lies in it. Nothing here touches the disk."""

    path: Path

    @property
    def spec(self) -> Path:
        """The spec as given, byte for byte."""
        return self.path / "spec.yaml"

    @property
    def resolved(self) -> Path:
        return self.path / "resolved.json"

    @property
    def ds_config(self) -> Path:
        """What deepspeed.initialize gets, byte for byte."""
        return self.path / "ds_config.json"

    @property
    def zero_config(self) -> Path:
        """What the DeepSpeed JSON said that the spec named as zero.config; there for such runs only."""
        return self.path / "zero_config.json"

    @property
    def hostfile(self) -> Path:
        return self.path / "hostfile"

    @property
    def plan_json(self) -> Path:
        return self.path / "plan.json"

    @property
    def plan_txt(self) -> Path:
        return self.path / "plan.txt"

    @property
    def plan_updates(self) -> Path:
        """What each update holds, as it was planned."""
        return self.path / "plan_updates.csv"

    @property
    def memory_json(self) -> Path:
        """What the run takes and how long, as it was planned."""
        return self.path / "memory.json"

    @property
    def memory_txt(self) -> Path:
        return self.path / "memory.txt"

    @property
    def work(self) -> Path:
        """Operations of the model and the peak of the newest launch's devices, for MFU."""
        return self.path / "work.json"

    @property
    def tensorboard(self) -> Path:
        """What TensorBoard reads, with logging.report_to."""
        return self.path / "tensorboard"

    @property
    def wandb_id(self) -> Path:
        """The id of the run in W&B, so that a resume goes on with the same one."""
        return self.path / "wandb_id"

    @property
    def prepared(self) -> Path:
        """What `ftcore.prepare` made: where the cached data, model and tokenizer lie."""
        return self.path / "prepared.json"

    @property
    def bad_rows(self) -> Path:
        """A file for each data set with more mistakes in its rows than an error shows."""
        return self.path / "bad_rows"

    @property
    def environment(self) -> Path:
        """Code, libraries, hosts and names of variables of the newest launch."""
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        """One JSON line an update, written by rank 0."""
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The trained model in Hugging Face's format."""
        return self.path / "model"

    @property
    def report(self) -> Path:
        """The page of the run: written at its end, and by `ftlaunch report`."""
        return self.path / "report.html"

    @property
    def lock(self) -> Path:
        """Held with flock while a launch owns the folder."""
        return self.path / ".lock"

    def node_script(self, node_rank: int) -> Path:
        return self.path / f"node_{node_rank:02d}.sh"

    def rank_metrics(self, rank: int) -> Path:
        return self.path / "metrics" / f"rank_{rank}.jsonl"

    def profile(self, rank: int) -> Path:
        """What torch's profiler recorded on this rank, as chrome://tracing and Perfetto read it."""
        return self.path / "profile" / f"rank_{rank}.json.gz"

    def attempt_logs(self, attempt: int) -> Path:
        return self.path / "logs" / f"attempt_{attempt}"

    def rank_log(self, attempt: int, rank: int) -> Path:
        return self.attempt_logs(attempt) / f"rank_{rank}.log"

    def rank_error(self, attempt: int, rank: int) -> Path:
        """JSON: why this rank failed, written by the rank itself."""
        return self.attempt_logs(attempt) / f"rank_{rank}.error.json"


def write_atomic(path: Path, data: str | bytes) -> None:
    """Writes aside, fsyncs, renames: a reader sees the old content or the new, never half of it.

    Half of a surrogate pair, which UTF-8 has no bytes for, is written as the escape that JSON has for it.
    """
    with replacing(path) as file:
        file.write(data.encode("utf-8", errors="backslashreplace") if isinstance(data, str) else data)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A binary file aside of `path` that takes its place, durably, when the block ends well, and is gone when it does not."""
    if path.parent == Path("/dev") or (path.exists() and not path.is_file() and not path.is_dir()):
        # Nobody means to put a file in the place of /dev/null.
        raise OSError(errno.EINVAL, "it is a device or a pipe, and no file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    fsync_path(path.parent)


def fsync_path(path: Path) -> None:
    """Makes a file's content durable, or for a folder the renames within it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
