"""The command line: what it imports, how verbs and options are read, and the exit statuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftcore.spec.run_dir import RunDir
from launcher.run_folder import locked
from tests.unit.live_processes import ROOT, environment
from tests.unit.local_launch import resolved_for

HEAVY = ("torch", "transformers", "deepspeed", "numpy", "jsonschema", "yaml", "pyarrow", "datasets", "rich", "tqdm")
SPEC = "model: {model_name_or_path: 'builtin:tiny-llama'}\ndata: {train: {path: 'builtin:extraction/train'}}\n"


def ftlaunch(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs `ftlaunch` in `folder` to its end."""
    argv = [sys.executable, "-m", "launcher.cli", *arguments]
    return subprocess.run(argv, env=environment(**more), cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    program = "import sys; from launcher.cli import main; status = main(['--help']); print(*sys.modules, sep='\\n', file=sys.stderr); sys.exit(status)"
    ended = subprocess.run([sys.executable, "-c", program], env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False)
    loaded = {name.partition(".")[0] for name in ended.stderr.split()}
    assert ended.returncode == 0 and "click" in loaded and not loaded & set(HEAVY)
    assert all(text in ended.stdout for text in ("--resume RUN", "--zero", "validate", "export", "Exit status"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["exprot", "RUN"], "did you mean `ftlaunch export`?"),
        (["setup"], "there are init, launch, validate, "),
        (["my.yaml"], "write `ftlaunch --spec my.yaml`"),
        (["--zero", "4"], "4 is not in the range"),
        (["--frobnicate"], "No such option"),
        (["--dry-run", "validate"], "unexpected argument 'validate'"),
        (["export", "RUN"], "Missing option '--to'"),
        (["export", "RUN", "--to", "x", "--format", "zip"], "'zip' is not one of"),
        (["--resume", "r", "--zero", "1", "a.b=c", "-o", "x"], "--output would change it"),
    ],
)
def test_usage_errors(tmp_path: Path, arguments: list[str], told: str) -> None:
    (tmp_path / "my.yaml").write_text(SPEC)
    ended = ftlaunch(tmp_path, *arguments)
    assert ended.returncode == 2 and told in ended.stderr.replace("\n", " ") and "Traceback" not in ended.stderr


def test_version(tmp_path: Path) -> None:
    ended = ftlaunch(tmp_path, "--version")
    assert ended.returncode == 0 and ended.stdout.startswith("ftlaunch")


def test_validate_what_is_right(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SPEC)
    ended = ftlaunch(tmp_path, "validate", "a.yaml", "a.yaml", "--hostfile", str(ROOT / "hostfiles/2node"))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "OK a.yaml\nOK a.yaml\n", "")
    assert ftlaunch(tmp_path, "validate").stdout.startswith("OK the embedded default")
    (tmp_path / "ftlaunch.yaml").write_text(SPEC)
    assert ftlaunch(tmp_path, "validate").stdout == "OK ftlaunch.yaml\n"


def test_validate_lists_every_mistake_of_every_spec(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SPEC + "optimizer: {lerning_rate: 1}\nzero: {stage: 7}\n")
    (tmp_path / "b.yaml").write_text(SPEC)
    (tmp_path / "c.yaml").write_text(SPEC + "cluster: {hosts: nowhere}\n")
    ended = ftlaunch(tmp_path, "validate", "a.yaml", "b.yaml", "c.yaml")
    assert ended.returncode == 2 and ended.stdout == "OK b.yaml\n"
    lines = ended.stderr.splitlines()
    assert lines[0] == "ftlaunch: 3 problems"
    assert "a.yaml:3: optimizer.lerning_rate" in ended.stderr and "a.yaml:4: zero.stage" in ended.stderr and "nowhere: can't read this hostfile" in ended.stderr
    assert ftlaunch(tmp_path, "validate", "c.yaml").returncode == 3


def test_validate_as_json(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SPEC + "zero: {stage: 7}\n")
    (tmp_path / "b.yaml").write_text(SPEC)
    ended = ftlaunch(tmp_path, "validate", "--json", "a.yaml", "b.yaml")
    wrong, right = json.loads(ended.stdout)
    assert ended.returncode == 2 and ended.stderr == ""
    assert wrong["file"] == "a.yaml" and not wrong["ok"] and wrong["problems"][0]["line"] == 3
    assert right == {"file": "b.yaml", "ok": True, "problems": [], "warnings": []}
    assert ftlaunch(tmp_path, "validate", "--json", "b.yaml").returncode == 0


def test_which_spec_is_used_is_said_first(tmp_path: Path) -> None:
    ended = ftlaunch(tmp_path, "--hosts", str(ROOT / "hostfiles/2node"))
    assert ended.stdout == "spec: the embedded default (no spec given, no ./ftlaunch.yaml)\n"
    assert ended.returncode == 3 and "node1: " in ended.stderr and "node2: " in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_options_with_underscores_and_plain_assignments(tmp_path: Path) -> None:
    (tmp_path / "e").write_text("A=secret\n")
    ended = ftlaunch(tmp_path, "train.max_steps=3", "--env_file", "e", "--dry_run", "optimizer.lerning_rate=1", "--set", "zero.stage=9")
    assert ended.returncode == 2 and ended.stdout == "environment: A (from e)\n"
    assert "optimizer.lerning_rate" in ended.stderr and "zero.stage" in ended.stderr and "secret" not in ended.stderr


@pytest.mark.parametrize("verb", [["--resume"], ["export", "--to", "x"]])
def test_a_folder_that_holds_no_run(tmp_path: Path, verb: list[str]) -> None:
    ended = ftlaunch(tmp_path, *verb, "missing")
    assert ended.returncode == 5 and "there is no folder missing" in ended.stderr


def test_resuming_a_run_that_is_in_use(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.resolved.write_text(resolved_for().to_json())
    run_dir.ds_config.write_text("{}")
    with locked(run_dir):
        ended = ftlaunch(tmp_path, "--resume", ".")
    assert ended.returncode == 5 and f"in use by another launch: process {os.getpid()}" in ended.stderr
    run_dir.resolved.write_text("{")
    assert ftlaunch(tmp_path, "--resume", ".").returncode == 5


def test_a_dry_run_on_remote_hosts(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("node1 slots=2\ntrainer@node1.lab slots=1\n")
    ended = ftlaunch(tmp_path, "--dry-run", "-H", "hosts", "-o", "r", "train.max_steps=2", FTLAUNCH_CACHE=str(tmp_path / "cache"))
    assert ended.returncode == 0, ended.stderr
    assert "warning: hosts node1 and node1.lab look like one machine" in ended.stderr
    assert ended.stdout.splitlines()[1:3] == ["run folder: r", "world size: 3 (node1: 2, node1.lab: 1), ZeRO stage 2"]
    run = tmp_path / "r"
    made = {path.name for path in run.iterdir()}
    assert {"spec.yaml", "resolved.json", "ds_config.json", "hostfile", "plan.txt", "plan.json", "node_00.sh", "node_01.sh"} <= made
    assert (run / "plan.txt").read_text() in ended.stdout and "no rank was started" in ended.stdout
    assert (run / "hostfile").read_text() == "node1 slots=2\ntrainer@node1.lab slots=1\n"
    assert 'MASTER_ADDR:-node1}"' in (run / "node_01.sh").read_text()
    assert {path.name for path in (run / "logs/attempt_1").iterdir()} == {"prepare.log"}
    again = ftlaunch(tmp_path, "--dry-run", "-H", "hosts", "-o", "r")
    assert again.returncode == 5 and "r already holds a run" in again.stderr and "ftlaunch --resume r" in again.stderr
    assert ftlaunch(tmp_path, "--resume", "r").returncode == 3


def test_a_bug_of_ours_is_called_one(tmp_path: Path) -> None:
    program = "import sys, launcher.cli as cli, launcher.verbs; launcher.verbs.VERBS = ('nowhere',); sys.exit(cli.main(['nowhere']))"
    env = environment(TMPDIR=str(tmp_path))
    ended = subprocess.run([sys.executable, "-c", program], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    (saved,) = tmp_path.glob("ftlaunch-bug-*.log")
    assert ended.returncode == 1 and "this is our bug: ModuleNotFoundError" in ended.stderr and str(saved) in ended.stderr
    assert "Traceback" in saved.read_text() and "Traceback" not in ended.stderr


def test_ctrl_c_before_anything_was_started(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "slow.yaml")
    process = subprocess.Popen([sys.executable, "-m", "launcher.cli", "validate", "slow.yaml"], env=environment(), cwd=tmp_path, stderr=subprocess.PIPE)
    # Returns when the other side reads.
    handle = os.open(tmp_path / "slow.yaml", os.O_WRONLY)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    os.close(handle)
    assert process.returncode == 130 and told == b"\nstopped by SIGINT\n"


@pytest.mark.parametrize("arguments", [["validate"], ["--help"]])
def test_a_reader_that_went_away(tmp_path: Path, arguments: list[str]) -> None:
    read_handle, write_handle = os.pipe()
    os.close(read_handle)
    argv = [sys.executable, "-m", "launcher.cli", *arguments]
    ended = subprocess.run(argv, env=environment(), cwd=tmp_path, stdout=write_handle, stderr=subprocess.PIPE, check=False)
    os.close(write_handle)
    assert (ended.returncode, ended.stderr) == (141, b"")


def shell(folder: Path, line: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of bash in which $FT is the command line `python -m launcher.cli`."""
    env = environment(FT=f"{sys.executable} -m launcher.cli", FTLAUNCH_CACHE=str(folder / "cache"), **more)
    return subprocess.run(["bash", "-c", line], env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("line", "status", "told"),
    [
        ("$FT validate >&-", 0, ""),
        ("$FT validate <&- >&- 2>&-", 0, ""),
        ("$FT validate nowhere.yaml 2>/dev/full", 2, ""),
        ("$FT --help >/dev/full", 141, ""),
        ("mkdir gone; cd gone; rmdir ../gone; $FT validate", 2, "ftlaunch: the current folder has been deleted\n    fix: cd to a folder that exists\n"),
    ],
)
def test_odd_surroundings(tmp_path: Path, line: str, status: int, told: str) -> None:
    ended = shell(tmp_path, line)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "", told)


def test_names_that_are_no_text_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    ended = shell(tmp_path, "$FT --dry-run -o $'r\\xff'; echo $?; mkdir $'d\\xfe'; cd $'d\\xfe'; $FT --dry-run; echo $?; ls")
    assert ended.stdout == "2\n2\n"
    assert "argument 3: 'r\\udcff' holds bytes that are not UTF-8 text" in ended.stderr and "the current folder: '" in ended.stderr
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_terminal_and_an_empty_path_do_not_end_a_run(tmp_path: Path) -> None:
    ended = shell(tmp_path, f"PATH= {sys.executable} -m launcher.cli --dry-run -o r train.max_steps=1 >/dev/full")
    assert (ended.returncode, ended.stderr) == (0, "") and (tmp_path / "r/plan.txt").is_file()


def test_ctrl_c_during_imports(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    ended = shell(tmp_path, "$FT --help", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "stopped by SIGINT\n")


def test_a_run_that_was_changed_does_not_go_on(tmp_path: Path) -> None:
    assert ftlaunch(tmp_path, "--dry-run", "-o", "r", "train.max_steps=1", FTLAUNCH_CACHE=str(tmp_path / "cache")).returncode == 0
    run_dir = RunDir(tmp_path / "r")
    config = json.loads(run_dir.ds_config.read_text())
    config["optimizer"]["params"]["lr"] = 1
    run_dir.ds_config.write_text(json.dumps(config))
    ended = ftlaunch(tmp_path, "--resume", "r", "--dry-run")
    assert ended.returncode == 5 and "r/ds_config.json: it differs from what the run was started with: optimizer.params.lr\n" in ended.stderr
    assert "start a new run (-o)" in ended.stderr
    run_dir.resolved.write_text(run_dir.resolved.read_text().replace('"seed": 42', '"seed": 43'))
    ended = ftlaunch(tmp_path, "--resume", "r", "--dry-run")
    assert ended.returncode == 5 and "r/resolved.json: it was changed since the run was started" in ended.stderr


def test_what_a_terminal_has_no_bytes_for_is_escaped() -> None:
    program = "from launcher.cli import main; main(['--version']); print('\\xe9 \\ud800')"
    done = subprocess.run([sys.executable, "-c", program], env={**environment(), "PYTHONIOENCODING": "ascii"}, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0 and done.stdout.endswith(b"\\xe9 \\ud800\n"), done.stderr
