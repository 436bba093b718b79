"""A signal to a job before its launch has begun, with the real process."""

from __future__ import annotations

import subprocess
import sys

from tests.unit.live_processes import ROOT, environment

PROGRAM = """
import os, runpy, signal, sys
import launcher.submission.job as job
from launcher.early_warning import EarlyWarningError

def run_start(start, signals):
    # As the launch does while it looks at the hosts.
    signals.ends_preparation = True
    try:
        os.kill(os.getpid(), signal.SIGUSR2)
        signal.pause()
    except EarlyWarningError:
        return 75

job.run_start, job.Start.of = run_start, staticmethod(lambda run, environment: None)
sys.argv = ["slurm_job", "RUN"]
runpy.run_module("launcher.slurm_job", run_name="__main__")
"""


def test_an_early_signal_is_the_one_that_the_launch_expects() -> None:
    """H04: the module that runs as a program and the one that is imported raise the same."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 75, ended.stderr
