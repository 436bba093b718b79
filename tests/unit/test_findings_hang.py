"""Runs that hung: the rank that is elsewhere than the others is named, and where it stood."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.findings.examine import examine
from launcher.findings.finding import Finding
from launcher.findings.stacks import odd_ones, parse_stack
from tests.unit.recorded_runs import RecordedRun

IN_COLLECTIVE = """process 7: S (sleeping), in the kernel's futex_do_wait

Fatal Python error: Aborted

Current thread 0x00007f94f3bbeb80 (most recent call first):
  File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 3252 in {collective}
  File "/home/me/ftcore/collective_calls.py", line 146 in told
  File "/venv/site-packages/deepspeed/comm/torch.py", line 290 in {collective}
  File "/home/me/ftcore/engine.py", line {line} in backward
  File "/home/me/ftcore/train/loop.py", line 191 in train_update
"""
READING = """process 8: D (disk sleep), in the kernel's nfs_wait

Current thread 0x00007f94f3bbeb80 (most recent call first):
  File "/home/me/ftcore/feed/ahead.py", line 65 in next
  File "/home/me/ftcore/train/loop.py", line 180 in train_update
"""
STOPPED = "process 9: T (stopped), in the kernel's do_signal_stop\n\n"


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    return RecordedRun(tmp_path / "run")


def first(run: RecordedRun) -> Finding:
    """The finding that comes first."""
    return examine(run.write()).findings[0]


@pytest.mark.parametrize(
    ("stacks", "rank", "words"),
    [
        (
            {0: IN_COLLECTIVE.format(collective="all_reduce", line=118), 1: STOPPED},
            1,
            "rank 1 on localhost was stopped by a signal; the other waits for it in all_reduce",
        ),
        ({0: READING, 1: IN_COLLECTIVE.format(collective="all_gather", line=118)}, 0, "rank 0 on localhost was in next (ftcore/feed/ahead.py:65)"),
        ({0: IN_COLLECTIVE.format(collective="all_reduce", line=118), 1: IN_COLLECTIVE.format(collective="broadcast", line=40)}, None, "out of step"),
        (
            {0: IN_COLLECTIVE.format(collective="all_reduce", line=118), 1: IN_COLLECTIVE.format(collective="all_reduce", line=118)},
            None,
            "all 2 ranks were in all_reduce",
        ),
        ({}, None, "no rank's stack could be had"),
    ],
)
def test_a_hang_names_the_odd_rank_out(stacks: dict[int, str], rank: int | None, words: str, run: RecordedRun) -> None:
    run.trained(4)
    run.files |= {f"logs/attempt_1/stacks/rank_{each}.txt": text for each, text in stacks.items()}
    run.set("cluster", stall_timeout=7.0)
    run.event(
        "failure",
        who="the run",
        verb="hung",
        status=6,
        log="logs/attempt_1/stacks",
        details=["no rank made progress"],
        last_progress={"1": "train after update 3"},
    )
    run.ended(6, "the run hung: exit status 6")
    found = first(run)
    assert (found.kind, found.rank, found.update) == ("hang", rank, 5)
    assert words in found.what and "7 s" in found.what
    assert not stacks or any("last progress: train after update 3" in line for line in found.details)
    assert found.causes and found.go_on


def test_of_many_ranks_the_one_elsewhere_is_named() -> None:
    most = [parse_stack(rank, IN_COLLECTIVE.format(collective="all_gather", line=118)) for rank in range(6)]
    odd = parse_stack(6, IN_COLLECTIVE.format(collective="all_gather", line=40))
    assert odd_ones([*most, odd]) == [odd], "in the same collective, called from elsewhere"
    assert parse_stack(0, "nonsense").called == "its stack could not be had"


def test_a_slow_start_is_no_hang_in_training(run: RecordedRun) -> None:
    run.event("failure", who="the run", verb="hung", status=6, log="", details=["not every rank had begun to work 900 s after the start"])
    run.ended(6, "the run hung: exit status 6")
    found = first(run)
    assert found.phase == "load" and "cluster.start_timeout=1800" in found.knobs[0].options
