"""TensorBoard and W&B, for real: what is written is read back, a resume goes on in the same run, and no place that fails or hangs stops training."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ftcore.metrics import reporters as module
from ftcore.metrics.reporters import Reporter, Reporters, open_reporters
from ftcore.metrics.scalars import evaluation_scalars, update_scalars
from ftcore.metrics.wandb_writer import config_of, run_id
from ftcore.spec.run_dir import RunDir
from ftcore.spec.run_sections import LoggingSection
from tests.ranks.specs import make_spec, with_section
from tests.unit import wandb_files
from tests.unit.local_launch import resolved_for

LINE = {
    "schema": 1,
    "update": 3,
    "loss": 2.5,
    "grad_norm": "inf",
    "learning_rate": 1e-4,
    "epoch": 0.5,
    "stepped": True,
    "mfu": None,
    "tokens_per_s": 100.0,
    "supervised_tokens_per_s": 40.0,
    "padding_share": 0.2,
    "peak_memory_bytes": 7,
    "allocated_bytes": None,
    "energy_joules": 6.0,
    "window_train_seconds": 4.0,
    "phase_updates": 2,
    "phases": {"forward": 1.0, "idle": 3.0},
    "losses": {"a": 1.0},
    "group_norms": {"default": 0.5},
}


def test_scalars_have_stable_names() -> None:
    assert update_scalars(LINE) == {
        "loss": 2.5,
        "loss/a": 1.0,
        "grad_norm": float("inf"),
        "grad_norm/default": 0.5,
        "learning_rate": 1e-4,
        "epoch": 0.5,
        "throughput/tokens_per_s": 100.0,
        "throughput/supervised_tokens_per_s": 40.0,
        "throughput/padding_share": 0.2,
        "throughput/seconds_per_update": 2.0,
        "throughput/joules_per_update": 3.0,
        "memory/peak_bytes": 7.0,
        "phases/forward": 0.5,
        "phases/idle": 1.5,
    }
    assert update_scalars({"update": 1, "phases": None, "loss": None}) == {}
    assert evaluation_scalars({"set": "hard", "loss": 1.0, "perplexity": None, "tokens": 3}) == {"eval/hard/loss": 1.0}


def open_for(run_dir: RunDir, *places: str, next_update: int = 0, **logging: str) -> Reporters:
    """As the training loop opens them."""
    run_dir.path.mkdir(exist_ok=True)
    run_dir.resolved.write_text(resolved_for().to_json())
    found = open_reporters(with_section(make_spec(0), "logging", report_to=places, **logging), run_dir, next_update=next_update)
    assert found is not None
    return found


def train(run_dir: RunDir, place: str, updates: range, **logging: str) -> None:
    """One attempt that trains these updates (from 1) and evaluates after the last."""
    reporters = open_for(run_dir, place, next_update=updates.start - 1, **logging)
    for update in updates:
        reporters.update({**LINE, "update": update, "loss": 10.0 * updates.start + update})
    reporters.evaluation(updates[-1], {"set": "eval", "loss": 0.5, "perplexity": 1.6})
    reporters.close()
    notes = [json.loads(line)["text"] for line in run_dir.events.read_text().splitlines()] if run_dir.events.exists() else []
    assert notes == []


def test_tensorboard_shows_updates_that_are_done_again_once(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_dir = RunDir(tmp_path / "run")
    train(run_dir, "tensorboard", range(1, 7))
    train(run_dir, "tensorboard", range(5, 9))
    events = EventAccumulator(str(run_dir.tensorboard))
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("loss")] == [(step, (10.0 if step < 5 else 50.0) + step) for step in range(1, 9)]
    assert [(each.step, each.value) for each in events.Scalars("eval/eval/loss")] == [(8, 0.5)]
    assert {"learning_rate", "grad_norm", "throughput/tokens_per_s", "memory/peak_bytes", "phases/forward"} <= set(events.Tags()["scalars"])


@pytest.fixture
def fresh_wandb() -> Iterator[None]:
    """W&B as a new process has it."""
    import wandb

    wandb.teardown()
    yield
    wandb.teardown()


@pytest.mark.usefixtures("fresh_wandb")
def test_wandb_goes_on_in_the_same_run_and_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", "4" * 40)
    monkeypatch.setenv("WANDB_PROJECT", "chats")
    run_dir = RunDir(tmp_path / "run")
    train(run_dir, "wandb", range(1, 4), run_name="mine")
    first = wandb_files.runs(run_dir.path)
    # W&B names the folder of an attempt by the second it begins in.
    began = int(time.time())
    while int(time.time()) == began:
        time.sleep(0.05)
    train(run_dir, "wandb", range(3, 5), wandb_project="other")
    second = [path for path in wandb_files.runs(run_dir.path) if path not in first]
    (run, config), (again, _) = wandb_files.described(first[0]), wandb_files.described(second[0])
    assert (run.display_name, run.project, again.display_name, again.project) == ("mine", "chats", "run", "other")
    assert run.run_id == again.run_id == run_id(run_dir)
    assert config["model"]["model_name_or_path"] == "builtin:tiny-llama" and config["zero"]["stage"] == 2 and config["hosts"][0]["slots"] == 2
    lines = wandb_files.history(first[0])
    assert [(line["update"], line.get("loss"), line.get("eval/eval/loss")) for line in lines] == [
        (1, 11.0, None),
        (2, 12.0, None),
        (3, 13.0, None),
        (3, None, 0.5),
    ]
    assert [line["update"] for line in wandb_files.history(second[0])] == [3, 4, 4]
    assert all(b"4" * 40 not in path.read_bytes() for path in (run_dir.path / "wandb").rglob("*") if path.is_file())


@pytest.mark.usefixtures("fresh_wandb")
def test_wandb_without_a_login_keeps_its_numbers_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "NETRC", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    run_dir = RunDir(tmp_path / "run")
    reporters = open_for(run_dir, "wandb")
    reporters.update(LINE)
    reporters.close()
    (note,) = run_dir.events.read_text().splitlines()
    assert "wandb can't be reached" in note and "`wandb sync` sends them later" in note
    assert [line["update"] for line in wandb_files.history(wandb_files.runs(run_dir.path)[0])] == [3]


def test_no_secret_and_no_value_of_a_variable_is_in_the_config() -> None:
    resolved = {
        "spec": {"data": {"path": "https://x?sig=abcdefgh1"}, "cluster": {"environment": {"B": "1", "A": "2"}, "ssh_options": ["-i", "k"]}},
        "hosts": [],
    }
    shown = config_of(resolved, {"SOME_TOKEN": "abcdefgh1", "KEY": "k", "PATH": "https"})
    assert shown == {"data": {"path": "https://x?sig=(hidden)"}, "cluster": {"environment": ["A", "B"], "ssh_options": ["-i", "k"]}, "hosts": []}


def test_a_damaged_id_begins_another_run(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    first = run_id(run_dir)
    assert run_id(run_dir) == first
    run_dir.wandb_id.write_bytes(b"\xff\xff")
    assert run_id(run_dir) not in ("", first)


class Broken:
    """A writer that fails at its second number."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def write(self, update: int, scalars: Mapping[str, float]) -> None:
        self.seen.append(update)
        if len(self.seen) == 2:
            raise ConnectionError("no route to host")

    def close(self, *, failed: bool) -> None:
        raise OSError("closed before it was opened")


def reporter(open_writer: Any) -> tuple[Reporter, list[str]]:
    notes: list[str] = []
    return Reporter("a place", open_writer, notes.append), notes


@pytest.mark.parametrize(("updates", "told"), [(1, "OSError: closed"), (5, "ConnectionError: no route to host")])
def test_a_place_that_fails_leaves_a_note_and_stops_nothing(updates: int, told: str) -> None:
    writer = Broken()
    place, notes = reporter(lambda: writer)
    for update in range(updates):
        place.put(update, {})
    began = time.monotonic()
    place.close(began + 600.0, failed=False)
    assert time.monotonic() - began < 300 and len(notes) == 1 and told in notes[0] and "metrics.jsonl has them all" in notes[0]
    assert len(writer.seen) == min(2, updates)


def test_a_package_that_is_missing_on_the_ranks_host_leaves_a_note() -> None:
    def missing() -> Any:
        raise ModuleNotFoundError("No module named 'wandb'")

    place, notes = reporter(missing)
    place.put(1, {})
    place.close(time.monotonic() + 60.0, failed=False)
    assert len(notes) == 1 and "No module named 'wandb'" in notes[0]


def test_a_place_that_hangs_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 3)
    go_on = threading.Event()

    class Hanging:
        def write(self, update: int, scalars: Mapping[str, float]) -> None:
            go_on.wait(600)

        def close(self, *, failed: bool) -> None:
            pass

    place, notes = reporter(Hanging)
    for update in range(1, 40):
        place.put(update, {})
    place.close(time.monotonic() + 0.2, failed=False)
    go_on.set()
    assert len(notes) == 2 and "takes nothing: updates from" in notes[0] and "has not taken everything" in notes[1]


def test_the_end_says_whether_the_run_failed() -> None:
    told: list[bool] = []

    class Listening(Broken):
        def close(self, *, failed: bool) -> None:
            told.append(failed)

    def ended(error: BaseException | None) -> None:
        reporters = Reporters([reporter(Listening)[0]])
        try:
            if error is not None:
                raise error
        except BaseException:  # noqa: BLE001  as the loop's `finally`
            reporters.close()
        else:
            reporters.close()
        reporters.close()

    from ftcore.spec.errors import PreemptedError, TrainingError

    for error in (None, PreemptedError("asked to"), TrainingError("nan")):
        ended(error)
    assert told == [False, False, True]


def test_nothing_is_imported_for_a_run_that_reports_nowhere() -> None:
    names = "tensorboard", "wandb"
    code = f"import sys, ftcore.metrics.reporters; sys.exit(any(name in sys.modules for name in {names}))"
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False, capture_output=True).returncode == 0
    assert open_reporters(with_section(make_spec(0), "logging", report_to=()), RunDir(Path("/nowhere")), next_update=0) is None
    assert LoggingSection().report_to == ()
