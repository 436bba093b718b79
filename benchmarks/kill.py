"""kill -9 of a small run again and again, also on a full disk and with damaged files: `python -m benchmarks.kill --kills 500`.

Prints what was killed in which moment, and how many ends differ from the unbroken run's by a single bit.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

DISK_MB = 24
"""Size of the disk that is filled: room for the checkpoints of one run, and a little more."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the campaign; returns 0 when every run ended bit-equal to the unbroken one, else 1."""
    asked = parse(arguments)
    from tests.e2e.kill_harness import Campaign
    from tests.e2e.test_kill_campaign import given

    seed = asked.seed if asked.seed is not None else random.randrange(1 << 32)
    started = time.monotonic()
    with place(full_disk=asked.full_disk) as folder:
        tally = Campaign(given(folder), seed=seed, damages=asked.damage, fills_disk=asked.full_disk).run(asked.kills)
    rows = {
        "kills in training": tally.kills["training"],
        "kills in saving": tally.kills["saving"],
        "kills in loading": tally.kills["loading"],
        "of one rank alone": tally.single,
        "resumes": tally.resumes,
        "runs brought to their end": tally.runs,
        "files damaged": tally.damaged,
        "checkpoints passed over": tally.passed_over,
        "times the disk was filled": tally.full_disks,
        "ranks that ended by that": tally.failed_on_full_disk,
        "mismatches": len(tally.mismatches),
        "seconds": round(time.monotonic() - started),
        "seed": seed,
    }
    for name, value in rows.items():
        print(f"{name:28}{value:>12}")
    for text in tally.mismatches:
        print(f"    {text}")
    return 1 if tally.mismatches else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kill", description="Kill a small run at random moments and compare its end.")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--damage", action="store_true", help="cut or flip a random file of the newest checkpoint before some resumes")
    parser.add_argument("--full-disk", action="store_true", help="fill the disk (a small tmpfs, needs root) in some attempts")
    parser.add_argument("--seed", type=int, help="of the moments; the run itself is always the same")
    return parser.parse_args(arguments)


@contextmanager
def place(*, full_disk: bool) -> Iterator[Path]:
    """A folder that is gone at the end; with `full_disk` on a small disk of its own. Ends the program, saying so, where none can be mounted."""
    with tempfile.TemporaryDirectory(prefix="ftlaunch-kill-") as folder:
        if not full_disk:
            yield Path(folder)
            return
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", folder], capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            print(f"skipped: a tmpfs can't be mounted here ({mounted.stderr.strip() or 'root is needed'})")
            sys.exit(0)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=False)


if __name__ == "__main__":
    sys.exit(main())
