"""A real Slurm of two nodes on this machine (tests/cluster/slurm.sh), each node a host with processes and a network of its own.

Seen with Slurm 22.05 on it, by hand, before anything was built on it:
- In a job of two nodes `srun --nodes=1 --ntasks=1 -w NODE` runs one task there, gets the stdin of srun, and two such steps run side by side.
- `scancel -s USR2 JOB` reaches the steps, not the batch script; with -b the script, not the steps; with -f all processes of the job, srun too, which
  ends at once of a signal that it does not know ("User defined signal 1") and leaves its step running.
- `--signal=B:USR2@20` reaches the batch script alone, `--signal=USR2@20` the steps alone, as early as a minute sooner than asked: with a limit of one
  minute some 10 s after the start. A limit itself is looked at every 30 s or so: TERM and CONT to all, KILL after KillWait.
- `scontrol requeue` sends TERM and CONT, KILL after KillWait (5 s here), waits until all is gone and then for cred_expire (10 s here, 120 s by default)
  before it starts the job again, with SLURM_RESTART_COUNT=1 and the same job id and, with --open-mode=append, the same file of output.
- A node that is set down while a job with --requeue runs: srun says "Node failure on NODE", the other node's script gets TERM, the job waits until a node is
  back and runs with SLURM_RESTART_COUNT=1. No signal is sent to what may still run on the lost node.
- Ended jobs stay in `squeue --states=all` with their state (COMPLETED, FAILED, TIMEOUT, CANCELLED) and in `scontrol show job` with their ExitCode.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from tests.cluster.hosts import LIMIT_S, Cluster

SCRIPT = Path(__file__).with_name("slurm.sh")
PROGRAMS = ("/usr/sbin/munged", "/usr/sbin/slurmctld", "/usr/sbin/slurmd", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
PREFIX = "ftslurm"
NODES = (f"{PREFIX}1", f"{PREFIX}2")
ENDED = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"})
"""States of jobs that are over."""


class Slurm:
    """Slurm from `up` to `down`; nodes are the hosts ftslurm1 and ftslurm2."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.hosts = folder, Cluster(folder, (*NODES, f"{PREFIX}3"))

    @classmethod
    def up(cls, folder: Path) -> Slurm:
        """Starts it and waits until both nodes are idle. Raises RuntimeError with what the daemons wrote when that fails."""
        slurm = cls(folder)
        try:
            slurm._script("up", str(folder), environment={"OWNER": str(os.getpid())})
        except RuntimeError:
            slurm.down()
            raise
        return slurm

    def down(self) -> None:
        """Ends jobs, daemons and hosts."""
        self.hosts.down()

    @property
    def environment(self) -> dict[str, str]:
        """The variable that leads Slurm's programs to this Slurm."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """What a command of Slurm prints. Raises AssertionError with its words when it fails."""
        done = subprocess.run(command, env={**os.environ, **self.environment}, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def sbatch(self, *arguments: str, cwd: Path | None = None) -> int:
        """Submits a job; its id."""
        return int(self.run("sbatch", "--parsable", *arguments, cwd=cwd).split(";")[0])

    def jobs(self) -> dict[str, str]:
        """Job id (12, or 12_3 in an array) -> state, of the past ones too."""
        lines = self.run("squeue", "--noheader", "--array", "--states=all", "--format=%i %T").splitlines()
        return {words[0]: words[1] for words in map(str.split, lines)}

    def state(self, job: int | str) -> str:
        """A job's state, as squeue writes it: PENDING, RUNNING, COMPLETED, ..."""
        return self.jobs()[str(job)]

    def shown(self, job: int | str) -> dict[str, str]:
        """What `scontrol show job` says of a job, by name: ExitCode, Restarts, Requeue, TimeLimit, ..."""
        words = self.run("scontrol", "--oneliner", "show", "job", str(job)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, job: int | str, states: frozenset[str] | set[str] = ENDED, seconds: float = 300.0) -> str:
        """Waits until a job is in one of these states (default: it is over); which one. Raises AssertionError when time runs out."""
        deadline = time.monotonic() + seconds
        while (state := self.state(job)) not in states:
            assert time.monotonic() < deadline, f"job {job} is {state} after {seconds:g} s, not {' or '.join(sorted(states))}: {self.shown(job)}"
            time.sleep(0.1)
        return state

    def processes(self) -> dict[str, str]:
        """Node and pid -> command line, of everything that jobs have running."""
        return {f"{node}:{pid}": command for node in NODES for pid, command in self.hosts.processes(node).items()}

    def kill_node(self, node: str) -> None:
        """Kills a node with all that runs on it, and tells Slurm; its job sees a node failure. `start` brings it back."""
        self.hosts.kill_node(node)
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=killed")

    def start(self, node: str) -> None:
        """A node that was killed comes back, and is idle soon."""
        self.hosts.start(node)
        self._script("slurmd", str(self.folder), node)

    def restore(self) -> None:
        """No job is there any more, both nodes are idle, and nothing runs on them."""
        if pending := [job for job, state in self.jobs().items() if state not in ENDED]:
            self.run("scancel", *pending)
        for node in NODES:
            if not self.hosts.is_up(node):
                self.start(node)
            self.hosts.mend(node)
        deadline = time.monotonic() + LIMIT_S
        while self.run("sinfo", "--noheader", "--states=idle", "--format=%D").strip() != "2":
            assert time.monotonic() < deadline, self.run("sinfo")
            time.sleep(0.1)
        self.hosts.restore()

    def _script(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.hosts.script(SCRIPT, *arguments, environment=environment)
