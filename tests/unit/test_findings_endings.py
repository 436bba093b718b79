"""How runs end, and what the doctor says of each, on folders as launches leave them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from ftcore.process import report
from ftcore.spec.run_dir import RunDir
from launcher.findings.examine import examine
from launcher.findings.finding import ENDED, NOTE, WRONG, Finding
from launcher.findings.memory_knobs import Shortage, memory_knobs
from launcher.findings.micro_steps import widest_row
from launcher.findings.seen import look
from launcher.findings.text import render
from launcher.memory.ledger import build_ledger
from tests.unit.planned_runs import llama
from tests.unit.planned_runs import run as planned_run
from tests.unit.recorded_runs import GIB, RecordedRun

OUT = "out of memory: 2.00 GiB asked for; this process holds 3.00 GiB"
HEAVIEST = (
    "it was the heaviest micro-step of the run, tried before its first update "
    "(4000 tokens, 1900 of them supervised, the longest sample has 1000; it comes in update 9)"
)


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    return RecordedRun(tmp_path / "run")


def first(run: RecordedRun) -> Finding:
    """The finding that comes first."""
    return examine(run.write()).findings[0]


def test_out_of_memory_with_its_numbers(run: RecordedRun) -> None:
    run.trained(10)
    memory = {"asked_bytes": 2 * GIB, "resident_bytes": 3 * GIB, "limit_bytes": 4 * GIB, "phase": "forward", "segments": [1000] * 16, "supervised_tokens": 9000}
    run.error(1, OUT, where="memory", memory=memory)
    run.event("rank_exit", rank=1, host="localhost", status=6, ended_by_launcher=False)
    run.ended(6, "rank 1 on localhost failed: exit status 6")
    found = first(run)
    assert (found.kind, found.severity, found.rank, found.host, found.phase) == ("out_of_memory", ENDED, 1, "localhost", "forward")
    assert any("16,000 tokens (16 samples, the longest 1,000)" in line for line in found.details)
    assert any(line.startswith("the ledger's item that grew most: activations of layers") for line in found.details)
    assert found.items[0].name == "activations of layers" and found.items[0].grew_bytes > 0
    assert "short of 1.0 GiB, by what was asked for and what was left" in found.details
    assert [each.file for each in found.evidence] == ["logs/attempt_1/rank_1.error.json"] * 2 + ["metrics/rank_1.jsonl", "memory.json"]


def test_the_knobs_come_in_order_of_cost_and_are_the_ledgers(run: RecordedRun) -> None:
    """Each saving is the difference of two ledgers, of the run's spec and of the spec with that one thing changed."""
    run.set("zero", stage=0)
    seen = look(run.write())
    assert seen.resolved is not None and seen.shape is not None
    knobs = memory_knobs(seen, Shortage(row=None, bytes=1))
    options = [knob.options for knob in knobs]
    assert options[:3] == ["--set train.gradient_checkpointing=every:2", "--set train.gradient_checkpointing=full", "--set batch.micro_batch_tokens=2048"]
    assert options.index("--set batch.micro_batch_tokens=1024") == 3 and all(option.startswith("--zero") for option in options[4:])
    row = widest_row(seen, seen.resolved)
    before = build_ledger(seen.resolved, seen.shape, row, on_cpu=True).device_peak_bytes
    run.set("train", gradient_checkpointing="full")
    changed = look(run.write())
    assert changed.resolved is not None and changed.shape is not None
    assert knobs[1].saved_bytes == before - build_ledger(changed.resolved, changed.shape, row, on_cpu=True).device_peak_bytes
    assert all(knob.is_enough and knob.may_resume for knob in knobs)
    assert "20-40 % more time" in knobs[1].costs


def test_offload_comes_last_and_on_accelerators_alone(run: RecordedRun) -> None:
    run.memory["capacity"] = {"accelerator": "h100-80", "device_bytes": 80 * GIB}
    seen = dataclasses.replace(look(run.write()), resolved=planned_run(ranks=8, stage=1, budget=8192), shape=llama())
    knobs = memory_knobs(seen, Shortage(row=None, bytes=30 * GIB))
    order = [knob.options.split("=")[0].removeprefix("--set ") for knob in knobs]
    assert list(dict.fromkeys(order)) == [
        "train.gradient_checkpointing",
        "batch.micro_batch_tokens",
        "--zero 2",
        "--zero 3",
        "zero.offload_optimizer",
        *order[-1:],
    ]
    assert "offload_param=cpu" in knobs[-1].options and not knobs[-1].may_resume and knobs[-1].is_enough
    assert {knob.is_enough for knob in knobs} == {True, False}


def test_memory_in_pieces_is_told(run: RecordedRun) -> None:
    memory = {"device_bytes": 80 * GIB, "reserved_bytes": 79 * GIB, "allocated_bytes": 60 * GIB, "asked_bytes": 2 * GIB}
    run.error(0, "out of memory on the accelerator: CUDA out of memory. Tried to allocate 2.00 GiB.", where="memory", memory=memory)
    run.ended(6, "rank 0 on localhost failed: exit status 6")
    found = first(run)
    assert any("19.0 GiB" in line and "expandable_segments" in line for line in found.details)
    assert "short of 1.0 GiB, by what was asked for and what was left" in found.details


def test_out_of_memory_in_words_alone(run: RecordedRun) -> None:
    """As an earlier version wrote it: the micro-step stands in the message."""
    run.event("error", kind="TrainingError", rank=0, problems=[{"what": OUT, "where": "memory"}, {"what": HEAVIEST, "where": "memory"}], exit_status=6)
    run.ended(6, "rank 0 on localhost failed: exit status 6")
    found = first(run)
    assert found.kind == "out_of_memory" and any("4,000 tokens" in line and "1,900 of them" in line for line in found.details)
    assert found.go_on[0].startswith("ftlaunch --resume ") and found.knobs[0].options in found.go_on[0]


def test_the_kernels_killer_and_a_persons(run: RecordedRun) -> None:
    run.trained(5)
    run.event(
        "rank_exit", rank=1, host="w2", status=137, ended_by_launcher=False, resident_bytes=6 * GIB, limit_bytes=8 * GIB, available_bytes=GIB, oom_kills=1
    )
    run.ended(137, "rank 1 on w2 failed: killed by SIGKILL (exit status 137)")
    found = first(run)
    assert (found.kind, found.rank, found.host, found.update) == ("killed_for_memory", 1, "w2", 6)
    assert "the kernel's out-of-memory killer" in found.what and found.knobs and "it held up to 6.0 GiB" in found.evidence[0].what
    run.events[-2] |= {"oom_kills": 0, "available_bytes": 90 * GIB}
    found = first(run)
    assert found.kind == "killed" and "memory was not short" in found.what and not found.knobs


def nan_event(run: RecordedRun, *, losses: tuple[str, ...], reason: str = "the loss is nan", **fields: Any) -> None:
    steps = [{"rank": rank, "micro_step": 0, "loss": loss, "samples": [10 * rank, 10 * rank + 1]} for rank, loss in enumerate(losses)]
    run.event("failed_update", update=len(run.updates) + 1, reason=reason, micro_steps=steps, loss_scale=None, **fields)


def test_a_nan_names_its_samples(run: RecordedRun) -> None:
    run.trained(10)
    nan_event(run, losses=("2.5", "nan"))
    run.error(1, "the loss is nan; the step was not taken and no parameter was changed", where="loss")
    run.ended(6, "rank 1 on localhost failed: exit status 6")
    found = first(run)
    assert (found.kind, found.severity, found.rank, found.update, found.phase) == ("nan", ENDED, 1, 11, "forward")
    assert found.details == ("rank 1, micro-step 0: loss nan, samples 10, 11",)
    assert found.causes[0].startswith("likely: the samples named above")
    assert found.knobs[0].options == "--set train.on_nonfinite=skip"
    assert "learning rate 1e-05" in found.evidence[1].what
    assert len([each for each in examine(run.write()).findings if each.kind == "nan"]) == 1, "told once"


@pytest.mark.parametrize("losses", [("6e7", "7e7"), ("nan", "inf")])
def test_an_update_that_failed_as_a_whole_is_the_learning_rates(run: RecordedRun, losses: tuple[str, ...]) -> None:
    run.set("optimizer", learning_rate=100.0)
    run.trained(1)
    nan_event(run, losses=losses, reason="the gradient norm is inf")
    run.error(0, "the gradient norm is inf; the step was not taken and no parameter was changed", where="gradient")
    run.ended(6, "rank 0 on localhost failed: exit status 6")
    found = first(run)
    assert found.causes[0].startswith("likely: the learning rate") and ("the loss in it was about 6.5e+04" in found.causes[0]) == (losses[0] == "6e7")
    assert found.knobs[0].options == "--set optimizer.learning_rate=10" and not any(cause.startswith("likely: the samples") for cause in found.causes)


def test_a_nan_after_a_rise_is_the_learning_rates(run: RecordedRun) -> None:
    run.set("optimizer", learning_rate=1e-3, max_grad_norm=0.0)
    for loss in (2.0, 30.0, 5e5):
        run.trained(1, loss=loss, grad_norm=10 * loss)
    nan_event(run, losses=("3.0", "4.0"), reason="the gradient norm is inf")
    run.error(0, "the gradient norm is inf; the step was not taken and no parameter was changed", where="gradient")
    run.ended(6, "rank 0 on localhost failed: exit status 6")
    found = first(run)
    assert found.phase == "backward" and found.causes[0].startswith("likely: the learning rate")
    assert [knob.options for knob in found.knobs[:2]] == ["--set optimizer.learning_rate=0.0001", "--set optimizer.max_grad_norm=1.0"]
    assert "a resume can't change that" in found.go_on[0]


def test_skipped_updates_are_told_though_the_run_goes_on(run: RecordedRun) -> None:
    run.trained(10)
    nan_event(run, losses=("nan",))
    run.trained(5)
    run.ended(0, "done")
    found = first(run)
    assert (found.kind, found.severity, found.go_on) == ("nan", WRONG, ())


@pytest.mark.parametrize(
    ("what", "kind", "fields", "found"),
    [
        ("row 3 is no JSON", "DataError", {"fix": "mend it"}, "data"),
        ("[Errno 28] No space left on device: 'x'", "CheckpointError", {}, "disk_full"),
        ("the ranks hold 5 supervised tokens, the plan says 6", "TrainingError", {"where": "update"}, "desync"),
        ("Detected mismatch between collectives on ranks", "FtError", {"traceback": "Traceback\n  x"}, "desync"),
        ("RuntimeError: boom", "FtError", {"traceback": "Traceback (most recent call last):\n  File x\nRuntimeError: boom"}, "error"),
        ("no such key", "SpecError", {}, "spec"),
        ("update_3 is damaged", "CheckpointError", {}, "checkpoint"),
    ],
)
def test_what_a_rank_said_is_sorted(what: str, kind: str, fields: dict[str, Any], found: str, run: RecordedRun) -> None:
    run.trained(3)
    # A rank that only missed the other one, and said so first, is no cause.
    run.error(1, "RuntimeError: Connection closed by peer", kind="FtError", lost_peer=True)
    run.error(0, what, kind=kind, **fields)
    run.ended(1, "rank 0 on localhost failed: exit status 1")
    finding = first(run)
    assert (finding.kind, finding.severity, finding.rank) == (found, ENDED, 0)
    assert what.splitlines()[0] in finding.what


def test_ends_that_are_nobodys_fault(run: RecordedRun) -> None:
    run.trained(3)
    run.event("preempted", update=3, path="update_00000003")
    run.ended(75, "preempted by SIGUSR2: what was trained is saved")
    found = first(run)
    assert (found.kind, found.severity, found.update) == ("preempted", NOTE, 3)
    run.events[-2] |= {"event": "checkpoint"}
    assert "nothing to save that is not in the checkpoint of update 3" in first(run).what
    run.events[-2] |= {"event": "loop_start"}
    assert "before there was anything to save" in first(run).what
    run.events[-1] |= {"status": 130, "reason": "stopped by SIGINT"}
    assert (first(run).kind, first(run).severity) == ("stopped", NOTE)
    assert "healthy" in render(examine(run.write()))


def test_a_rank_that_got_the_signal_of_a_stop_was_killed(run: RecordedRun) -> None:
    run.trained(3)
    run.event("rank_exit", rank=1, host="localhost", status=143, ended_by_launcher=False)
    run.event("failure", who="rank 1 on localhost", verb="failed", status=143, log="logs/attempt_1/rank_1.log", details=[], hints=[])
    run.ended(143, "rank 1 on localhost failed: killed by SIGTERM")
    found = first(run)
    assert (found.kind, found.severity, found.what) == ("killed", ENDED, "rank 1 on localhost was killed by SIGTERM (exit status 143)")


@pytest.mark.parametrize(
    ("events", "kind", "words"),
    [
        (
            [("failure", {"who": "host w2", "verb": "was lost", "status": 3, "details": ["nothing was heard of it for 6.0 s"]})],
            "host_lost",
            "host w2 was lost: nothing",
        ),
        ([("rank_exit", {"rank": 1, "host": "w2", "status": 139, "ended_by_launcher": False})], "crash", "killed by SIGSEGV"),
        ([("failure", {"who": "rank 1 on w2", "verb": "left before the training was done", "status": 1, "details": ["status 0"]})], "left", "left before"),
        ([("failure", {"who": "the preparation", "verb": "failed", "status": 4, "log": "logs/attempt_1/prepare.log"})], "data", "the preparation failed"),
    ],
)
def test_other_ends(events: list[tuple[str, dict[str, Any]]], kind: str, words: str, run: RecordedRun) -> None:
    for name, fields in events:
        run.event(name, **fields)
    run.ended(1, "it failed")
    found = first(run)
    assert (found.kind, found.severity) == (kind, ENDED) and words in found.what


def test_a_launch_without_an_end(run: RecordedRun) -> None:
    run.trained(3)
    found = examine(run.write())
    assert (found.state, found.findings[0].kind, found.findings[0].severity) == ("killed", "launcher_lost", ENDED)


def test_earlier_attempts_are_notes(run: RecordedRun) -> None:
    run.event("rank_exit", rank=1, host="w2", status=139, ended_by_launcher=False)
    run.ended(139, "rank 1 on w2 failed")
    run.event("launch_started", 2, hosts=["localhost"])
    run.trained(5, attempt=2)
    run.ended(0, "done", 2)
    found = examine(run.write())
    assert (found.state, found.attempt) == ("finished", 2)
    assert (
        [(each.kind, each.severity) for each in found.findings] == [("crash", NOTE)]
        and found.findings[0].what.startswith("attempt 1: ")
        and found.findings[0].update is None
    )


def test_a_rank_writes_its_memory_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The very functions of the core: what they write is what the doctor reads."""
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(MemoryError) as raised:
        raise MemoryError("Unable to allocate 1.00 GiB for an array")
    assert report(raised.value, RunDir(tmp_path)) == 6
    told = json.loads((tmp_path / "logs/attempt_1/rank_0.error.json").read_text())
    assert told["memory"]["asked_bytes"] == GIB and told["memory"]["resident_bytes"] > 0 and told["memory"]["available_bytes"] > 0


def test_an_error_of_a_rank_that_is_no_number_is_told_all_the_same(run: RecordedRun) -> None:
    run.trained(10)
    run.event("error", rank=[1], kind="TrainingError", problems=[{"what": "it broke", "where": "", "fix": ""}], exit_status=6)
    run.ended(6, "rank 1 on localhost failed: exit status 6")
    found = examine(run.write())
    assert (found.findings[0].what, found.findings[0].rank) == ("the run: it broke", None)


@pytest.mark.parametrize("update", [40, 100])
def test_a_launch_that_no_event_tells_of(update: int, run: RecordedRun) -> None:
    """Its script was started by hand, or its events are lost: one whose last update is done has ended well, as `ftlaunch status` says."""
    run.events.clear()
    run.trained(update)
    found = examine(run.write())
    told = [each.what for each in found.findings if each.severity == ENDED]
    lost = ["how the run ended is not recorded: its script was started by hand, or events.jsonl is damaged"]
    assert (found.state, told) == (("finished", []) if update == 100 else ("killed", lost))


def test_what_fails_after_the_last_update_is_in_none(run: RecordedRun) -> None:
    run.trained(100)
    run.error(1, "rank 0 could not save", where="checkpoints", kind="CheckpointError", status=5)
    run.ended(5, "rank 1 on localhost failed: exit status 5")
    assert (first(run).kind, first(run).update) == ("checkpoint", None)
