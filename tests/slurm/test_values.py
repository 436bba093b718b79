"""Values reach every rank byte for byte where srun starts the hosts' supervisors."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from tests.cluster.slurm import NODES, Slurm
from tests.multinode import value_launch
from tests.multinode.test_values import TRICKY
from tests.unit.live_processes import ROOT, wait_until


def test_tricky_values_arrive_byte_for_byte(slurm: Slurm, tmp_path: Path) -> None:
    value_launch.write_given(tmp_path, list(NODES), "srun", list(TRICKY), slurm.hosts.address(NODES[0]))
    script = tmp_path / "job.sbatch"
    command = shlex.join([sys.executable, "-m", "tests.multinode.value_launch", str(tmp_path)])
    script.write_text(f"#!/bin/bash\nexport PYTHONPATH={shlex.quote(str(ROOT))}\nexec {command}\n")
    job = slurm.sbatch("--nodes=2", "--ntasks-per-node=1", "--output=out", str(script), cwd=tmp_path)
    assert slurm.wait_for(job) == "COMPLETED", (tmp_path / "out").read_text()
    assert not value_launch.differences(tmp_path, list(TRICKY), len(NODES))
    assert not list(tmp_path.rglob("touched"))
    # A step's daemon tells Slurm of its end, and then ends.
    wait_until(lambda: not slurm.processes(), 60)
