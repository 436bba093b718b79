"""`ftlaunch init`: what it finds, what it asks on a real terminal, and that what it writes validates as it is."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ftcore.spec.document import read_document
from ftcore.spec.yaml_text import quoted
from launcher.cli import main
from launcher.init import machine
from launcher.init.data_files import DataFile, find_data, look_at
from launcher.init.machine import Hostfile, described_accelerators, find_hostfiles, find_models, half_type
from launcher.init.spec_text import METHODS, Choices, render_spec
from launcher.resolve import Options, check_spec

FTLAUNCH = str(Path(sys.executable).with_name("ftlaunch"))
CASES = Path(__file__).resolve().parents[1] / "cases" / "data"
TALK = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
PAIR = {"prompt": "a", "completion": "b"}


def write_rows(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No model in the hub's cache, and no accelerator."""
    monkeypatch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hub")))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


@pytest.mark.parametrize(
    ("rows", "form", "columns", "needs"),
    [
        ([TALK], "messages", {}, ""),
        ([{"conversation": TALK["messages"]}], "messages", {"messages": "conversation"}, ""),
        ([PAIR, PAIR], "prompt_completion", {}, ""),
        ([{"prompt": TALK["messages"][:1], "completion": TALK["messages"][1:]}], "prompt_completion", {}, ""),
        ([{"question": "a", "answer": "b"}], "prompt_completion", {"prompt": "question", "completion": "answer"}, ""),
        ([{"instruction": "a", "input": "", "output": "b"}], "alpaca", {}, ""),
        ([{"instruction": "a", "context": "c", "response": "b"}], "alpaca", {"output": "response", "input": "context"}, ""),
        ([{"conversations": [{"from": "human", "value": "a"}]}], "sharegpt", {}, ""),
        ([{"text": "a"}], "text", {}, ""),
        ([{"input_ids": [1, 2], "labels": [-100, 2]}], "tokenized", {}, ""),
        ([{"a": 1}, {"b": 2}], "", {}, "the fields of the first row are a (a number)"),
        ([{}], "", {}, "are none"),
        ([], "", {}, "no rows"),
        ([[1]], "", {}, "not JSON objects"),
    ],
)
def test_formats(tmp_path: Path, rows: list[object], form: str, columns: dict[str, str], needs: str) -> None:
    found = look_at(write_rows(tmp_path / "x.jsonl", *rows), "x.jsonl")
    assert (found.format, dict(found.columns)) == (form, columns) and needs in found.needs and bool(found.needs) == bool(needs)
    if rows and not needs:
        (tmp_path / "y.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
        assert look_at(tmp_path / "y.json", "x.jsonl") == found


def test_files_of_all_kinds_are_looked_at_without_failing(tmp_path: Path) -> None:
    for path in sorted(CASES.iterdir()):
        assert look_at(path, path.name).described().startswith(path.name)
    assert "can't be read" in look_at(tmp_path / "nowhere.jsonl", "x").needs
    for name, raw in {"bad.jsonl": b"\xff\xfe{", "cut.json": b'[{"prompt": "a", "completion": "b"}, {"pro', "bare.json": b"[1, 2"}.items():
        (tmp_path / name).write_bytes(raw)
        assert look_at(tmp_path / name, name).needs


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_only_the_beginning_of_a_large_file_is_read(tmp_path: Path, suffix: str) -> None:
    row = json.dumps({"prompt": "\u00e9" * 3000, "completion": "b"}, ensure_ascii=False)
    lines = ",\n".join([row] * 1000) if suffix == ".json" else "\n".join([row] * 1000)
    (tmp_path / f"x{suffix}").write_text(f"[{lines}]" if suffix == ".json" else lines, encoding="utf-8")
    assert look_at(tmp_path / f"x{suffix}", "x").format == "prompt_completion"


def test_what_lies_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "data" / "rows.jsonl", TALK)
    write_rows(tmp_path / "rows-eval.jsonl", PAIR)
    write_rows(tmp_path / "text.jsonl", {"story": "x"})
    (tmp_path / "package.json").write_text('{"name": "x"}', encoding="utf-8")
    assert [(each.path, each.is_held_out, bool(each.needs)) for each in find_data(tmp_path)] == [
        *(("rows-eval.jsonl", True, False), ("text.jsonl", False, True), ("data/rows.jsonl", False, False))
    ]
    (tmp_path / "hostfile").write_text("alpha slots=2\nbeta slots=2\n", encoding="utf-8")
    (tmp_path / "hostfiles").mkdir()
    (tmp_path / "hostfiles" / "wrong").write_text("alpha\n", encoding="utf-8")
    (tmp_path / "job").write_text("gamma slots=1\n", encoding="utf-8")
    right, wrong, job = find_hostfiles(tmp_path, tmp_path / "job")
    assert right == Hostfile("hostfile", "2 hosts, 4 ranks", True) and job == Hostfile(str(tmp_path / "job"), "1 host, 1 ranks", True)
    assert wrong.path == "hostfiles/wrong" and not wrong.is_right and "not usable" in wrong.note
    (tmp_path / "models" / "small").mkdir(parents=True)
    (tmp_path / "models" / "small" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    snapshot = tmp_path / "hub" / "models--owner--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (snapshot / "config.json").write_text("{}", encoding="utf-8")
    assert find_models(tmp_path) == ["m.gguf", "./models/small"]
    (snapshot / "model.safetensors").write_bytes(b"")
    assert find_models(tmp_path) == ["m.gguf", "./models/small", "owner/name"]


def test_accelerators_are_counted_by_kind() -> None:
    gpu = {"name": "NVIDIA H200", "memory_total": 141 * 2**30}
    assert described_accelerators([gpu, gpu, {"name": "NVIDIA GPU", "memory_total": None}]) == "2 x NVIDIA H200 (141.0 GiB each), 1 x NVIDIA GPU"
    assert "CPU" in described_accelerators([]) and machine.accelerators() == []


@pytest.mark.parametrize(
    "text", ["a.jsonl", "x y.jsonl", "12", "true", "null", "a: b", "#x", "a #b", "${HOME}/x", "-x", "'", '"', "caf\u00e9.jsonl", "1e5", "a\nb", "x:"]
)
def test_any_name_reads_back(text: str) -> None:
    from ftcore.spec.variables import Variables

    document = read_document(
        f"a: {quoted(text)}\nb: {{c: {quoted(text)}}}\n".encode(), "s.yaml", Variables(environment={}, is_secret=lambda name, value: False)
    )
    assert document.data == {"a": text, "b": {"c": text}} and not document.problems


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("columns", [{}, {"prompt": "the question", "completion": "answer"}])
def test_what_is_written_validates_as_it_is(tmp_path: Path, method: str, precision: str, columns: dict[str, str]) -> None:
    path = str(write_rows(tmp_path / "rows 1.jsonl", PAIR))
    train = DataFile(path=path, format="prompt_completion", columns=columns)
    choices = Choices(model="owner/name", train=train, evaluation=train, method=method, hosts="", precision=precision)
    (tmp_path / "s.yaml").write_text(render_spec(choices), encoding="utf-8")
    # A method or a type that this machine can't run is refused by a rule about the machine.
    problems = [problem for problem in check_spec(Options(spec_path=tmp_path / "s.yaml")) if problem.where not in ("method.type", "train.precision")]
    assert problems == [] and max(map(len, render_spec(choices).splitlines())) < 160


def init(folder: Path, *arguments: str) -> int:
    with contextlib.chdir(folder):
        return main(["init", *arguments])


def test_without_questions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(tmp_path, "--yes") == 0
    told = capsys.readouterr().out.splitlines()
    assert told == ["wrote ftlaunch.yaml", "", "next:", "  ftlaunch validate ftlaunch.yaml", "  ftlaunch data report", "  ftlaunch plan", "  ftlaunch"]
    assert "builtin:tiny-llama" in (tmp_path / "ftlaunch.yaml").read_text(encoding="utf-8")
    before = (tmp_path / "ftlaunch.yaml").read_bytes()
    write_rows(tmp_path / "a.jsonl", PAIR)
    write_rows(tmp_path / "a_test.jsonl", PAIR)
    assert init(tmp_path, "--yes", "--model", "owner/name") == 2 and (tmp_path / "ftlaunch.yaml").read_bytes() == before
    assert "--force" in capsys.readouterr().err
    assert init(tmp_path, "--yes", "--model", "owner/name", "--force", "-o", "sub/mine.yaml") == 0
    assert "ftlaunch plan --spec sub/mine.yaml" in capsys.readouterr().out
    data = read_document((tmp_path / "sub" / "mine.yaml").read_bytes(), "mine.yaml").data
    assert data["data"]["train"] == {"path": "a.jsonl", "format": "prompt_completion"} and data["data"]["eval"]["path"] == "a_test.jsonl"
    assert data["method"]["type"] == "lora" and data["train"]["precision"] == "fp32"
    (tmp_path / "hosts").write_text("192.0.2.7 slots=2\n", encoding="utf-8")
    assert init(tmp_path, "--yes", "--model", "owner/name", "-o", "far.yaml", "--hosts", "hosts") == 0
    assert read_document((tmp_path / "far.yaml").read_bytes(), "far.yaml").data["train"]["precision"] == "bf16"


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--yes"], 2, "give --model"),
        (["--yes"], 2, "give --data: there are a.jsonl, b.jsonl"),
        (["--yes", "--model", "owner/name"], 2, "give --data: there are a.jsonl, b.jsonl"),
        (["--yes", "--model", "./nowhere", "--data", "nowhere.jsonl"], 2, "2 problems"),
        (["--yes", "--model", "owner/name", "--data", "text.jsonl"], 4, "columns: {text: story}"),
        (["--yes", "--model", "owner/name", "--data", "a.jsonl", "--eval", "text.jsonl"], 4, "--eval"),
        (["--yes", "--model", "owner/name", "--data", "a.jsonl", "--hosts", "nowhere"], 2, "--hosts"),
        (["--yes", "--model", "owner/name", "--data", "a.jsonl", "-o", "a.jsonl"], 2, "ends in .yaml"),
        (["--yes", "--model", "owner/name", "--data", "a.jsonl", "-o", "a.jsonl/x.yaml"], 2, "can't write"),
        (["--yes", "--model", "owner/name", "--data", "a.jsonl", "--method", "adapter"], 2, "--method"),
        (["--model", "owner/name"], 2, "give --yes"),
    ],
)
def test_what_init_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, told: str) -> None:
    write_rows(tmp_path / "a.jsonl", PAIR)
    write_rows(tmp_path / "b.jsonl", PAIR)
    write_rows(tmp_path / "text.jsonl", {"story": "x"})
    before = {path.name for path in tmp_path.iterdir()}
    assert init(tmp_path, *arguments) == status and told in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == before


def test_no_data_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / "text.jsonl", {"story": "x"})
    assert init(tmp_path, "--yes", "--model", "owner/name") == 2
    assert "text.jsonl (not yet usable" in capsys.readouterr().err
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    assert init(tmp_path, "--yes", "--data", str(write_rows(tmp_path / "a.jsonl", TALK))) == 0
    assert "./m" in (tmp_path / "ftlaunch.yaml").read_text(encoding="utf-8")


@contextlib.contextmanager
def terminal(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`ftlaunch init` on a pseudo-terminal of its own: the process and our end of the line."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([FTLAUNCH, "init", *arguments], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(handle: int, *told: str, seconds: float = 120) -> str:
    """What the terminal shows up to all of `told`, one behind the other."""
    text, end = b"", time.monotonic() + seconds
    while not _holds(text.decode(errors="replace"), told):
        ready, _, _ = select.select([handle], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"{told!r} did not come: {text.decode()}"
        text += os.read(handle, 4096)
    return text.decode(errors="replace")


def _holds(text: str, parts: Sequence[str]) -> bool:
    at = 0
    for part in parts:
        at = text.find(part, at) + len(part)
        if at < len(part):
            return False
    return True


def answer(handle: int, dialogue: Sequence[tuple[str, str]]) -> str:
    """Types each answer when its question stands there; gives all that was shown."""
    shown = ""
    for told, typed in dialogue:
        shown += read_until(handle, told, "> ")
        os.write(handle, typed.encode() + b"\n")
    return shown


def test_questions_on_a_terminal(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", {"question": "a", "answer": "b"})
    write_rows(tmp_path / "rows_dev.jsonl", {"question": "a", "answer": "b"})
    write_rows(tmp_path / "story.jsonl", {"story": "a"})
    (tmp_path / "hostfile").write_text("localhost slots=2\n", encoding="utf-8")
    dialogue = [
        *(("Which model?", "99"), ("there is no 99 in this list", "./nowhere"), ("no such file or folder", "owner/name")),
        *(("Which rows to train on?", "3"), ("text: story", "1"), ("Which held-out rows", ""), ("How to train it?", "adapter"), ("there are lora", "3")),
        ("On which hosts?", "2"),
    ]
    with terminal(tmp_path) as (process, handle):
        shown = answer(handle, dialogue)
        assert "no accelerators" in shown and "1 host, 2 ranks" in shown and "prompt is `question`" in shown
        read_until(handle, "ftlaunch validate", "ftlaunch plan")
        assert process.wait(60) == 0
    data = read_document((tmp_path / "ftlaunch.yaml").read_bytes(), "ftlaunch.yaml").data
    assert data["model"] == {"model_name_or_path": "owner/name"} and data["method"]["type"] == "full" and data["cluster"] == {"hosts": "hostfile"}
    assert data["data"]["train"] == {"path": "rows.jsonl", "format": "prompt_completion", "columns": {"prompt": "question", "completion": "answer"}}
    assert data["data"]["eval"]["path"] == "rows_dev.jsonl"


@pytest.mark.parametrize(
    ("names", "precision"),
    [
        *((["Tesla T4", "Tesla T4"], "fp16"), (["Tesla V100-SXM2-16GB"], "fp16"), (["Tesla T4", "NVIDIA L4"], "bf16")),
        *((["NVIDIA H100"], "bf16"), (["some GPU"], "bf16"), ([], "bf16")),
    ],
)
def test_the_type_that_tensor_cores_have(names: list[str], precision: str) -> None:
    assert half_type([{"name": name, "memory_total": None} for name in names]) == precision


def test_ctrl_c_at_a_question_leaves_nothing(tmp_path: Path) -> None:
    with terminal(tmp_path) as (process, handle):
        read_until(handle, "> ")
        # One that comes after the prompt is written and before the read begins is seen when the read ends, so it is sent until it counts.
        # Not at once again: one that comes while it ends because of the first would end it in another way.
        for _ in range(30):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
                break
        assert process.wait(60) == 128 + signal.SIGINT
    assert list(tmp_path.iterdir()) == []
