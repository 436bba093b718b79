"""kill -9 of the whole job at any moment, then --resume: bit-equal to a run that nobody killed."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from tests.e2e.conftest import LIMIT_S, TINY, Cli

UPDATES, SAVE_EVERY = 24, 3
LAST_KILL = 12
"""From here on no run is killed: the updates that are left are the time in which a process that was late can still do it."""
OPTIONS = (*TINY, "--set", f"train.max_steps={UPDATES}", "--set", f"checkpoint.save_steps={SAVE_EVERY}", "--no-export", "--no-report")


def kill_all(launcher: psutil.Popen, until: Callable[[], bool]) -> None:
    """SIGKILL to the launcher and everything below it, as soon as `until` holds."""
    deadline = time.monotonic() + LIMIT_S
    processes: list[psutil.Process] = []
    looked = 0.0
    while not until():
        assert time.monotonic() < deadline and launcher.poll() is None, "the moment to kill at never came"
        if time.monotonic() - looked > 0.5:  # listing processes takes longer than a save
            processes, looked = launcher.children(recursive=True), time.monotonic()
        time.sleep(0.0002)
    for process in [launcher, *processes]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    launcher.wait()
    assert psutil.wait_procs(processes, timeout=60)[1] == []


def final_state(run: Path) -> dict[str, bytes]:
    """Every tensor of the last checkpoint, by rank and name, as bytes."""
    checkpoint = run / "checkpoints" / f"update_{UPDATES:08d}"
    tensors = {rank: load_file(checkpoint / f"rank_{rank}" / "state.safetensors") for rank in (0, 1)}
    return {f"{rank}/{name}": tensor.numpy().tobytes() for rank, held in tensors.items() for name, tensor in held.items()}


def consumed(run: Path) -> list[list[list[list[int]]]]:
    """By rank and update: the sample ids of each micro-step."""
    return [[json.loads(line)["samples"] for line in (run / "metrics" / f"rank_{rank}.jsonl").read_text().splitlines()] for rank in (0, 1)]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    cli = Cli(tmp_path_factory.mktemp("unbroken"), cache)
    done = cli.run(*OPTIONS, "-o", "run")
    assert done.returncode == 0, done.stderr
    return cli.folder / "run"


def metrics_lines(run: Path) -> int:
    path = run / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def in_save(run: Path, first: int, last: int) -> bool:
    """Whether a save is under way of one of these updates: who looks for a single one may miss it."""
    return any((run / "checkpoints" / f"update_{update:08d}.partial").is_dir() for update in range(first, last + 1, SAVE_EVERY))


@pytest.mark.parametrize("moment", ["random_update", "inside_a_save", "just_after_start"])
def test_resume_after_kill_is_bit_equal(moment: str, unbroken: Path, cli: Cli) -> None:
    run = cli.folder / "run"
    update = random.randrange(4, LAST_KILL)
    launcher = psutil.Popen([cli.program, *OPTIONS, "-o", "run"], cwd=cli.folder, env=cli.environment)
    kill_all(
        launcher,
        {
            "random_update": lambda: metrics_lines(run) >= update,
            "inside_a_save": lambda: in_save(run, 2 * SAVE_EVERY, LAST_KILL),
            "just_after_start": lambda: metrics_lines(run) >= 1,
        }[moment],
    )
    assert not (run / "checkpoints" / f"update_{UPDATES:08d}").exists()
    resumed = cli.run("--resume", "run", "--no-export", "--no-report")
    assert resumed.returncode == 0, resumed.stderr
    assert final_state(run) == final_state(unbroken)
    assert consumed(run) == consumed(unbroken)
    losses = [[json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()] for folder in (run, unbroken)]
    assert losses[0] == losses[1]


def ids_by_update(run: Path) -> dict[int, list[int]]:
    """Update -> the ids of its samples over all ranks, sorted."""
    ids: dict[int, list[int]] = {}
    for path in (run / "metrics").glob("rank_*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            ids.setdefault(line["update"], []).extend(sample for part in line["samples"] for sample in part)
    return {update: sorted(held) for update, held in ids.items()}


def test_going_on_with_other_ranks_and_stages(unbroken: Path, cli: Cli) -> None:
    """2 ranks, killed; 1 rank in stage 1, killed; 4 ranks in stage 3: same samples, same losses, same learning rates."""
    run = cli.folder / "run"
    for options, update in (((*OPTIONS, "-o", "run"), 5), (("--resume", "run", "--zero", "1", "cluster.slots=1"), 8)):
        launcher = psutil.Popen([cli.program, *options], cwd=cli.folder, env=cli.environment)
        kill_all(launcher, lambda update=update: metrics_lines(run) >= update and (run / "checkpoints" / f"update_{update - update % 3:08d}").is_dir())
    (cli.folder / "four").write_text("localhost slots=4\n")
    refused = cli.run("--resume", "run", "train.max_steps=99", "--zero", "3")
    assert refused.returncode == 2 and "the learning rate of every update depends on the length of the run" in refused.stderr
    last = cli.run("--resume", "run", "--zero", "3", "--hosts", "four", "--no-export", "--no-report")
    assert last.returncode == 0, last.stderr
    assert "resumed with:" in last.stdout and "world_size 1 -> 4" in last.stdout and "zero.stage 1 -> 3" in last.stdout
    lines = [[json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()] for folder in (run, unbroken)]
    assert [line["loss"] for line in lines[0]] == pytest.approx([line["loss"] for line in lines[1]], rel=1e-5)
    assert [line["learning_rate"] for line in lines[0]] == [line["learning_rate"] for line in lines[1]]
    mine, whole = ids_by_update(run), ids_by_update(unbroken)
    # Lines of ranks that the run no longer has hold nothing of what was done again.
    assert {update: sorted(set(held)) for update, held in mine.items()} == whole
    told = [event for event in map(json.loads, (run / "events.jsonl").read_text().splitlines()) if event["event"] == "resumed_with"]
    assert [(event["world_size"], event["zero_stage"]) for event in told] == [(1, 1), (4, 3)]
    assert json.loads((run / "resolved.attempt_1.json").read_text())["spec"]["zero"]["stage"] == 2 and (run / "ds_config.attempt_2.json").is_file()
