"""`ftlaunch scale --submit` under a real Slurm: a job a point, collected when they are done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.slurm import Slurm
from tests.slurm.runs import Ftlaunch


def test_a_sweep_of_jobs(slurm: Slurm, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    ftlaunch = Ftlaunch(slurm, tmp_path, tmp_path_factory.getbasetemp() / "cache")
    small = ("--windows", "1", "--window-updates", "2", "--warm-up", "1")
    queued = ftlaunch.run("scale", "spec.yaml", "--submit", "--cpu", "--slots-per-node", "1", "--ranks", "1,2", "-o", "scale", *small)
    assert queued.returncode == 0 and "2 jobs left; ftlaunch scale scale collects them" in queued.stdout, queued.stdout + queued.stderr
    done = ftlaunch.run("scale", "scale", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "scale" / "scale.json").read_text())
    assert [(point["ranks"], point["state"], point["cores"]) for point in result["points"]] == [(1, "measured", 1), (2, "measured", 2)]
    assert result["agreement"]["passed"] and result["agreement"]["largest_loss_gap"] <= 1e-5
    # Two ranks of hosts with one slot each are two hosts.
    hosts = json.loads((tmp_path / "scale" / "points" / "w2-zero2" / "resolved.json").read_text())["hosts"]
    assert len({host["name"] for host in hosts}) == 2 and not list(tmp_path.glob("scale/points/*/checkpoints"))
    # Collected once, and then only shown; a job that is cancelled is a point that failed.
    assert ftlaunch.run("scale", "scale").returncode == 0
