"""`ftlaunch diff`: what is recorded of a launch, and what is said of two runs or specs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcore.spec.run_dir import RunDir
from launcher.approach import Approach, approach_hosts
from launcher.cli import main
from launcher.difference.compare import as_data, render
from launcher.difference.sides import read_side
from launcher.resolve import Options, read_and_resolve
from launcher.run_environment import commit_of, environment_record, write_environment
from tests.unit.local_launch import resolved_for

SPEC = "model: {model_name_or_path: 'builtin:tiny-llama'}\ndata: {train: {path: 'builtin:extraction/train'}}\ncluster: {slots: 2}\n"
FACTS = {
    "code_root": "/nowhere",
    "code": "0123456789abcdef",
    "python": "3.12.1",
    "machine": "x86_64",
    "versions": {"torch": "2.9.0", "nccl": ""},
    "accelerators": [{"name": "NVIDIA H100"}, {"name": "NVIDIA H100"}],
    "driver": "570.1",
}


def local(resolved: Any) -> Approach:
    return approach_hosts(resolved, Path("/nowhere"), starts=False)


def make_run(path: Path, *sets: str, loss: float = 1.0, fingerprint: str = "aa", torch: str = "2.9.0", variables: tuple[str, ...] = ()) -> Path:
    """A run's folder as a launch leaves it, as far as `diff` reads it."""
    path.mkdir()
    (path.parent / "spec.yaml").write_text(SPEC, encoding="utf-8")
    resolved = read_and_resolve(Options(spec_path=path.parent / "spec.yaml", sets=sets)).resolved
    run_dir = RunDir(path)
    run_dir.resolved.write_text(resolved.to_json(), encoding="utf-8")
    train = {
        "arrow": "/cache/x",
        "samples": 9,
        "rows": 10,
        "tokens": 90,
        "supervised_tokens": 40,
        "dropped": {"long": 1},
        "truncated": 0,
        "fingerprint": fingerprint,
    }
    run_dir.prepared.write_text(
        json.dumps({"train": train, "eval": {}, "model": {"name": "m", "revision": "", "digest": "dd"}, "version": 2}), encoding="utf-8"
    )
    record = environment_record([("localhost", 2)], {"localhost": {**FACTS, "versions": {"torch": torch, "nccl": ""}}}, list(variables))
    run_dir.environment.write_text(json.dumps({"version": 1, **record}), encoding="utf-8")
    rows = [{"update": update, "loss": loss + 2 - update, "tokens_per_s": 10.0 * update, "peak_memory_bytes": 5} for update in (1, 2)]
    run_dir.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"update": 3, "lo', encoding="utf-8")
    events = [
        {"event": "evaluation", "update": 2, "set": "eval", "loss": loss, "attempt": 1},
        {"event": "launch_ended", "status": 0, "reason": "done", "attempt": 1},
    ]
    run_dir.events.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    return path


def test_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = make_run(tmp_path / "a", "train.max_steps=2")
    b = make_run(tmp_path / "b", "train.max_steps=3", loss=0.5, fingerprint="bb", torch="2.10.0", variables=("NCCL_DEBUG",))
    assert main(["diff", str(a), str(b)]) == 0
    shown = capsys.readouterr().out
    for told in (
        "train.max_steps\n    a: 2   (--set)\n    b: 3   (--set)",
        *("train.fingerprint\n    a: aa\n    b: bb", "libraries.torch\n    a: 2.9.0\n    b: 2.10.0", "variables\n    only b: NCCL_DEBUG"),
        *("eval/loss\n    a: 1.0\n    b: 0.5", "loss\n    a: 1.0\n    b: 0.5", "code: the same", "data: 1 differs"),
    ):
        assert told in shown
    assert "/cache/x" not in shown and "ended" not in shown
    assert main(["diff", "--json", str(a), str(b)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["same"] is False and data["notes"] == [] and list(data["sections"]) == ["spec", "code", "data", "environment", "results"]
    assert data["sections"]["spec"] == [{"key": "train.max_steps", "a": 2, "b": 3, "a_source": "--set", "b_source": "--set"}]


def test_the_same_twice_but_for_its_results(tmp_path: Path) -> None:
    a, b = (read_side(make_run(tmp_path / name, loss=loss)) for name, loss in (("a", 1.0), ("b", 2.0)))
    assert as_data(a, b)["same"] and [change["key"] for change in as_data(a, b)["sections"]["results"]] == ["loss", "eval/loss"]
    assert "spec: the same" in render(a, a) and "results: the same" in render(a, a)


def test_a_run_of_an_older_ftlaunch(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    for name in ("environment.json", "prepared.json", "metrics.jsonl", "events.jsonl"):
        (a / name).unlink()
    resolved = json.loads((a / "resolved.json").read_text(encoding="utf-8"))
    del resolved["spec"]["hardware"], resolved["spec"]["cluster"]["start_timeout"]
    (a / "resolved.json").write_text(json.dumps(resolved), encoding="utf-8")
    data = as_data(read_side(a), read_side(b))
    assert data["same"] and list(data["sections"]) == ["spec", "results"]
    assert data["sections"]["spec"] == [] and len(data["notes"]) == 2 and "not recorded" in render(read_side(a), read_side(b))


def test_runs_that_were_never_started(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b", "hardware.host_memory=2 GiB")
    for run in (a, b):
        for name in ("environment.json", "metrics.jsonl", "events.jsonl"):
            (run / name).unlink()
    text = render(read_side(a), read_side(b))
    assert "results" not in text and "a dry run" in text
    assert "hardware.host_memory\n    a: (none)\n    b: 2147483648   (--set)" in text


def test_specs_and_a_spec_with_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "a", "train.max_steps=2")
    other = tmp_path / "other.yaml"
    other.write_text(SPEC.replace("slots: 2", "slots: 4") + "method: {type: lora}\n", encoding="utf-8")
    assert main(["diff", str(tmp_path / "spec.yaml"), str(other)]) == 0
    shown = capsys.readouterr().out
    assert f"method.type\n    a: full   (default)\n    b: lora   ({other}:4)" in shown and "only b: localhost slots=4" in shown
    assert main(["diff", str(other), str(run)]) == 0
    assert "train.max_steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "status", "told"),
    [
        (lambda path: None, 2, "there is no"),
        (lambda path: path.mkdir(), 5, "no run's folder"),
        (lambda path: path.write_text("model: {}\n", encoding="utf-8"), 2, "model_name_or_path"),
        (lambda path: (make_run(path) / "resolved.json").write_text("{}", encoding="utf-8"), 5, "holds no spec"),
        (lambda path: (make_run(path) / "prepared.json").write_text("{", encoding="utf-8"), 5, "can't be read"),
        (lambda path: (make_run(path) / "environment.json").write_text("[]", encoding="utf-8"), 5, "no object"),
    ],
)
def test_what_can_not_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Any, status: int, told: str) -> None:
    make(tmp_path / "x")
    assert main(["diff", str(tmp_path / "x"), str(tmp_path / "x")]) == status and told in capsys.readouterr().err


def test_what_is_recorded_of_a_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "a value")
    resolved = resolved_for()
    cluster = replace(resolved.spec.cluster, environment={"OWN": "a value"})
    resolved = replace(resolved, spec=replace(resolved.spec, cluster=cluster))
    run_dir = RunDir(tmp_path)
    write_environment(run_dir, resolved, local(resolved), {"HF_TOKEN": "a value"})
    text = run_dir.environment.read_text(encoding="utf-8")
    record = json.loads(text)
    assert record["libraries"]["torch"] and len(record["code"]["digest"]) == 16 and record["hosts"][0]["slots"] == 2
    assert {"NCCL_DEBUG", "OWN", "HF_TOKEN"} <= set(record["variables"]) and "a value" not in text
    heard = replace(local(resolved), facts={"localhost": FACTS})
    write_environment(run_dir, resolved, heard, {})
    record = json.loads(run_dir.environment.read_text(encoding="utf-8"))
    assert record["python"] == "3.12.1" and record["hosts"][0] == {"name": "localhost", "slots": 2, "accelerators": ["NVIDIA H100"] * 2, "driver": "570.1"}


def test_the_commit_of_a_checkout(tmp_path: Path) -> None:
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    assert commit_of(tmp_path) == ""
    (git / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    (git / "packed-refs").write_text(f"# pack-refs\n{'b' * 40} refs/heads/main\n", encoding="utf-8")
    assert commit_of(tmp_path) == "b" * 40
    (git / "refs" / "heads" / "main").write_text("a" * 40 + "\n", encoding="utf-8")
    assert commit_of(tmp_path) == "a" * 40
    (git / "HEAD").write_text("c" * 40 + "\n", encoding="utf-8")
    assert commit_of(tmp_path) == "c" * 40
