"""`ftlaunch validate` as a command: several specs, folders, standard input, options, and the JSON form; and what a spec may call things."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ftcore.spec.errors import SpecError
from launcher import spec_source
from launcher.cli import main
from launcher.resolve import Options, check_spec, read_and_resolve
from launcher.spec_warnings import spec_warnings

GOOD = "model: {model_name_or_path: 'builtin:tiny-llama'}\ndata: {train: {path: 'builtin:extraction/train'}}\n"
BAD = GOOD + "train: {max_stepz: 3}\n"


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives standard input a text."""

    def put(text: str) -> None:
        spec_source._stdin.cache_clear()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    yield put
    spec_source._stdin.cache_clear()


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    status = main(["validate", "--json", *arguments])
    out, err = capsys.readouterr()
    assert err == ""
    return status, json.loads(out)


def test_a_run_s_folder_in_place_of_a_spec_names_the_spec_in_it(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(GOOD, encoding="utf-8")
    with pytest.raises(SpecError, match="Is a directory") as caught:
        read_and_resolve(Options(spec_path=tmp_path))
    assert caught.value.problems[0].fix == f"give the run's own spec: {tmp_path / 'spec.yaml'}"


def test_a_folder_stands_for_its_specs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.yaml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "a.yml").write_text(BAD, encoding="utf-8")
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
    status, results = as_json(capsys, str(tmp_path), str(tmp_path / "b.yaml"))
    assert status == 2 and [(Path(result["file"]).name, result["ok"]) for result in results] == [("a.yml", False), ("b.yaml", True), ("b.yaml", True)]
    assert results[0]["problems"] == [
        {
            "what": "unknown key `max_stepz`",
            "where": "train.max_stepz",
            "fix": "did you mean `train.max_steps`?",
            "file": str(tmp_path / "a.yml"),
            "line": 3,
        }
    ]
    (tmp_path / "empty").mkdir()
    status, results = as_json(capsys, str(tmp_path / "empty"))
    assert status == 2 and "Is a directory" in results[0]["problems"][0]["what"]


def test_standard_input(typed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    typed(BAD)
    assert main(["validate", "-"]) == 2
    assert "<stdin>:3: train.max_stepz" in capsys.readouterr().err
    typed(json.dumps({"model": {"model_name_or_path": "builtin:tiny-llama"}, "data": {"train": {"path": "builtin:extraction/train"}}}, indent=1))
    status, results = as_json(capsys, "-", "-")
    assert (status, results) == (0, [{"file": "<stdin>", "ok": True, "problems": [], "warnings": []}] * 2)


def test_options_count_as_for_a_launch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(GOOD, encoding="utf-8")
    assert main(["validate", str(tmp_path / "s.yaml"), "--set", "train.max_steps=3", "--zero", "2"]) == 0
    assert main(["validate", str(tmp_path / "s.yaml"), "--set", "train.max_steps=x", "--include", "-oProxyCommand=x"]) == 2
    told = capsys.readouterr().err
    assert "train.max_steps" in told and "no host '-oProxyCommand=x'" in told


@pytest.mark.parametrize("name", ["../x", "a/b", ".x", "-x", "", "a b", "a\\nb", "..", "\u00e9", "x" * 65, "a.b"])
@pytest.mark.parametrize(
    "text", [f"{GOOD[:-2]}, eval_sets: {{SET: {{path: 'builtin:extraction/eval'}}}}}}\n", GOOD + "method: {type: lora, adapters: {SET: {}, b: {}}}\n"]
)
def test_names_that_would_leave_their_folder_or_be_options(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "s.yaml").write_text(text.replace("SET", f'"{name}"'), encoding="utf-8")
    problems = check_spec(Options(spec_path=tmp_path / "s.yaml"))
    assert any("is no name of a" in problem.what and "use letters" in problem.fix for problem in problems), problems


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "--help", "-l", "a;b", "$(x)", "a`x`", "host@-o", "-o@host", "a\tb"])
def test_a_host_is_never_an_option_or_a_command(tmp_path: Path, name: str) -> None:
    (tmp_path / "hosts").write_text(f"{name} slots=1\n", encoding="utf-8")
    assert main(["validate", "--hosts", str(tmp_path / "hosts")]) == 3
    (tmp_path / "s.yaml").write_text(GOOD, encoding="utf-8")
    for key in ("master_addr", "interface")[: 1 if name == "host@-o" else 2]:
        (problem,) = check_spec(Options(spec_path=tmp_path / "s.yaml", sets=(f"cluster.{key}={json.dumps(name)}",)))
        assert problem.where == f"cluster.{key}"
    with pytest.raises(SpecError, match="no host"):
        read_and_resolve(Options(spec_path=tmp_path / "s.yaml", include=name.replace("@", "")))


def test_code_from_a_repository_runs_only_when_the_spec_says_so_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(GOOD.replace("builtin:tiny-llama", "owner/name"), encoding="utf-8")
    assert spec_warnings(read_and_resolve(Options(spec_path=tmp_path / "s.yaml")).resolved.spec) == ()
    trusting = read_and_resolve(Options(spec_path=tmp_path / "s.yaml", sets=("model.trust_remote_code=true",))).resolved
    (warning,) = spec_warnings(trusting.spec)
    assert "owner/name" in warning and "revision main" in warning


HEAVY = {"torch", "transformers", "deepspeed", "numpy", "pyarrow", "datasets", "tokenizers", "peft", "huggingface_hub", "safetensors", "rich", "tqdm", "pandas"}


@pytest.mark.parametrize(
    "arguments", [["validate", "s.yaml"], ["plan", "--spec", "s.yaml"], ["config-schema"], ["init", "--yes", "-o", "new.yaml"], ["diff", "s.yaml", "s.yaml"]]
)
def test_what_is_decided_before_a_run_imports_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "s.yaml").write_text(GOOD, encoding="utf-8")
    program = f"import sys; from launcher.cli import main; status = main({arguments!r}); print(*sys.modules, file=sys.stderr); sys.exit(status)"
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    loaded = {name.partition(".")[0] for name in ended.stderr.split()}
    assert "launcher" in loaded and not loaded & HEAVY
    assert ("jsonschema" in loaded) == (arguments[0] != "config-schema")
