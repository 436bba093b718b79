"""Runs that tests submit: a small model, forty updates, a checkpoint after each."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cluster.slurm import Slurm
from tests.unit.live_processes import ROOT, wait_until

UPDATES = 40
SPEC = f"""
model: {{model_name_or_path: "builtin:tiny-llama"}}
data: {{train: {{path: "builtin:extraction/train"}}, max_length: 512}}
batch: {{global_batch_size: 4, micro_batch_tokens: 1024}}
optimizer: {{learning_rate: 1e-3}}
train: {{max_steps: {UPDATES}, precision: fp32}}
zero: {{stage: 2}}
checkpoint: {{save_steps: 1, save_async: false}}
logging: {{log_samples: true}}
"""


SLOW = """
import os
if "RANK" in os.environ:
    import time
    replace = os.replace
    def slowly(source, target, **more):
        if str(target).endswith("manifest.json"):
            time.sleep(2.5)
        return replace(source, target, **more)
    os.replace = slowly
"""
"""A sitecustomize.py that makes each save, and so each update, take 2.5 s: forty of them are longer than the 90 s
in which the warning of a limit of two minutes comes at the latest."""


class Ftlaunch:
    """Calls ftlaunch in a folder with a spec.yaml, as a user of this Slurm who works on CPUs."""

    def __init__(self, slurm: Slurm, folder: Path, cache: Path) -> None:
        self.slurm, self.folder, self.run_dir = slurm, folder, folder / "run"
        # A small threads' pool, and no variable of the tests' own launcher.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FTLAUNCH_", "SLURM_", "SBATCH_"))}
        self.environment = {**kept, **slurm.environment, "FTLAUNCH_CACHE": str(cache), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        (folder / "spec.yaml").write_text(SPEC)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One command to its end."""
        return subprocess.run(self._argv(*arguments), cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=600, check=False)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """One command that runs on."""
        return subprocess.Popen(self._argv(*arguments), cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True)

    def submit_all(self, *arguments: str, name: str = "run") -> list[str]:
        """Submits the spec as `name`; the ids of its jobs."""
        self.run_dir = self.folder / name
        ended = self.run("submit", "spec.yaml", "--cpu", "--no-export", "-o", name, *arguments)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return self.jobs()

    def submit(self, *arguments: str, name: str = "run") -> str:
        """The same for one job."""
        (job,) = self.submit_all(*arguments, name=name)
        return job

    def jobs(self) -> list[str]:
        """The ids in submission.json."""
        jobs: list[str] = json.loads((self.run_dir / "submission.json").read_text())["jobs"]
        return jobs

    def status(self) -> dict[str, Any]:
        """`ftlaunch status --json`."""
        ended = self.run("status", "--json", self.run_dir.name)
        assert ended.returncode == 0, ended.stderr
        found: dict[str, Any] = json.loads(ended.stdout)
        return found

    def slurm_log(self, job: str) -> str:
        """What the job's own process printed."""
        path = self.run_dir / "logs" / f"slurm-{job}.out"
        return path.read_text() if path.exists() else "(no log)"

    def wait_for_update(self, update: int) -> None:
        """Until so many updates are logged."""
        wait_until(lambda: len(losses(self.run_dir)) >= update, 300)

    def wait_for_attempt(self, attempt: int) -> None:
        """Until a rank of this launch has begun to log."""
        log = self.run_dir / "logs" / f"attempt_{attempt}" / "rank_0.log"
        wait_until(log.exists, 300)

    def _argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "launcher.cli", *arguments]


def losses(run_dir: Path) -> dict[int, float]:
    """Update -> its loss."""
    path = run_dir / "metrics.jsonl"
    return {record["update"]: record["loss"] for record in whole_lines(path)}


def events(run_dir: Path, name: str) -> list[dict[str, Any]]:
    """The events of this name."""
    path = run_dir / "events.jsonl"
    return [event for event in whole_lines(path) if event["event"] == name]


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """Those that are there; the last one may be in the middle of being written."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def parameters_digest(run_dir: Path) -> str:
    """Of all parameters and moments in the last checkpoint: the digests of its data files."""
    folder = max((run_dir / "checkpoints").glob("update_*"))
    files = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*.safetensors")}
    assert files
    return f"{folder.name} {json.dumps(files, sort_keys=True)}"
