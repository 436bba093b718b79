"""The Slurm of these tests does what the others rest on."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.slurm import NODES, Slurm
from tests.unit.live_processes import wait_until

STEPS = """#!/bin/bash
for node in $(scontrol show hostnames); do
    echo "for $node" | srun --nodes=1 --ntasks=1 -w $node bash -c '
        echo "$(hostname): $(cat)"; touch here_$(hostname)
        while [ $(ls here_* | wc -l) -lt 2 ]; do sleep 0.1; done' &
done
wait
"""
WAITING = """#!/bin/bash
echo "start ${SLURM_RESTART_COUNT:-0}"
trap 'echo batch USR2' USR2
srun --nodes=1 --ntasks=1 -w ftslurm2 bash -c 'trap "echo step USR2; exit 75" USR2; echo ready; while :; do sleep 0.1; done' &
step=$!
while kill -0 $step 2>/dev/null; do wait $step; status=$?; done
echo "status $status"
[ "${SLURM_RESTART_COUNT:-0}" = 1 ] || while :; do sleep 0.1; done
"""


def submit(slurm: Slurm, folder: Path, script: str, *arguments: str) -> int:
    path = folder / "job.sbatch"
    path.write_text(script)
    return slurm.sbatch("--nodes=2", "--ntasks-per-node=1", "--open-mode=append", "--output=out", *arguments, str(path), cwd=folder)


def wait_for_text(slurm: Slurm, job: int, out: Path, text: str) -> None:
    slurm.wait_for(job, {"RUNNING"})
    wait_until(lambda: out.is_file() and text in out.read_text(), 300)


def test_steps_on_both_nodes_side_by_side_get_stdin(slurm: Slurm, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, STEPS)
    assert slurm.wait_for(job) == "COMPLETED"
    assert sorted((tmp_path / "out").read_text().splitlines()) == [f"{node}: for {node}" for node in NODES]
    assert slurm.shown(job)["ExitCode"] == "0:0"


def test_a_signal_and_a_lost_node(slurm: Slurm, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = submit(slurm, tmp_path, WAITING, "--requeue")
    wait_for_text(slurm, job, out, "ready")
    assert any("sleep" in command for command in slurm.processes().values())
    slurm.kill_node("ftslurm2")
    slurm.wait_for(job, {"PENDING"})
    slurm.start("ftslurm2")
    # srun may have words of its own between the two.
    wait_until(lambda: "ready" in out.read_text().partition("start 1\n")[2], 300)
    slurm.run("scancel", "-s", "USR2", str(job))
    assert slurm.wait_for(job) == "COMPLETED"
    assert "step USR2" in out.read_text()
    assert "status 75" in out.read_text()
    assert "batch USR2" not in out.read_text()
    assert slurm.shown(job)["Restarts"] == "1"


def test_the_signal_before_a_time_limit(slurm: Slurm, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, WAITING, "--time=1", "--signal=B:USR2@30")
    wait_for_text(slurm, job, tmp_path / "out", "ready")
    wait_for_text(slurm, job, tmp_path / "out", "batch USR2")
    slurm.run("scancel", str(job))
    assert slurm.wait_for(job) == "CANCELLED"
