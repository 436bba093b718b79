"""`ftlaunch doctor` as a command: which hosts it asks, what it says of a hostfile that is wrong, its exit statuses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ftcore.spec.resolved import Host
from launcher.preflight.channel import Probes
from launcher.preflight.check import CheckOptions, check
from launcher.transport import local_argv
from tests.unit.live_processes import ROOT, environment

HOSTFILES = ROOT / "tests/cases/hostfiles"


def doctor(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs it in `folder` to its end."""
    env = environment(FTLAUNCH_CACHE=str(folder / "cache"))
    argv = [sys.executable, "-m", "launcher.cli", "doctor", *arguments]
    return subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_this_machine(tmp_path: Path) -> None:
    ended = doctor(tmp_path, "--json", "out.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 host asked in" in ended.stdout and "torch" in ended.stdout and ended.stderr == ""
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["version"] == 1 and report["fit"] and report["master_addr"] == "127.0.0.1"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    printed = doctor(tmp_path, "--json")
    assert json.loads(printed.stdout)["hosts"][0]["facts"]["code"] == report["hosts"][0]["facts"]["code"]


def test_a_machine_that_is_not_fit(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=1\n")
    ended = doctor(tmp_path, "-H", "hosts", "--json", "/proc/none/x")
    assert ended.returncode == 3 and "can't write /proc/none/x" in ended.stderr and "1 host asked" in ended.stdout
    (tmp_path / "nowhere").write_text("nowhere.invalid slots=1\n")
    ended = doctor(tmp_path, "-H", "nowhere")
    assert ended.returncode == 3 and "error: nowhere.invalid: its name is unknown here" in ended.stdout and "not fit, 1 error" in ended.stdout


def test_a_hostfile_that_is_not_there(tmp_path: Path) -> None:  # A06
    ended = doctor(tmp_path, "--hosts", "hostfiles/2nodes")
    assert ended.returncode == 3 and "hostfiles/2nodes: can't read this hostfile" in ended.stderr and ended.stdout == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alpha slots=2\nbeta slot=2\n", "hosts:2: 'beta slot=2'"),  # A03
        ("alpha slots=4x\nbeta:2222 slots=1\nnode[01-02] slots=1\ngamma slots=0\n", "ftlaunch: 4 problems"),  # A05
        ("trainer@alpha slots=two\n", "hosts:1: 'trainer@alpha slots=two'"),  # A07
    ],
)
def test_a_hostfile_that_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "hosts").write_text(text)
    ended = doctor(tmp_path, "-H", "hosts")
    assert ended.returncode == 3 and said in ended.stderr and ended.stderr.count("fix:") >= 1 and ended.stdout == ""


@pytest.mark.parametrize("ending", ["\r\n", "\n\n# a comment\n", "\n"])
def test_blank_lines_comments_and_line_endings(tmp_path: Path, ending: str) -> None:  # A04
    (tmp_path / "hosts").write_bytes(f"\ufeff# hosts{ending}localhost slots=2{ending}".rstrip("\n").encode())
    ended = doctor(tmp_path, "-H", "hosts", "--json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [(host["name"], host["slots"]) for host in json.loads(ended.stdout)["hosts"]] == [("localhost", 2)]


def test_filters_and_options_that_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    assert doctor(tmp_path, "-H", "hosts", "-i", "alpha").returncode == 2
    assert doctor(tmp_path, "-H", "hosts", "--launcher", "rsh").returncode == 2
    assert doctor(tmp_path, "-H", "hosts", "--master-port", "80").returncode == 2


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that answer are waited for until they do, however busy the machine is that all of them are."""
    kept = Probes.ask
    monkeypatch.setattr(Probes, "ask", lambda self, orders, limit_s, *told: kept(self, orders, 60.0, *told))


@pytest.mark.usefixtures("patience")
def test_a_clock_that_is_wrong(tmp_path: Path) -> None:
    def transport(host: Host, command: str) -> tuple[str, ...]:
        late = "import sys, time; real = time.time; time.time = lambda: real() - 400;"
        return local_argv(command.replace("import sys;", late) if host.name == "beta" else command)

    hosts = (Host(name="alpha", slots=1), Host(name="beta", slots=1))
    report = check(hosts, CheckOptions(transport=transport, run_parent=tmp_path, cache=tmp_path))
    [told] = [
        re.search(r"beta: its clock is (\d+\.\d) s behind this machine's; munge and Kerberos", note) for note in report.notes() if "beta: its clock" in note
    ]
    doubt = report.hosts[1].clock_error_s
    # A busy machine answers late, and says how far off the number may be for it.
    assert report.is_fit and told and doubt is not None and abs(float(told[1]) - 400) <= 0.1 + doubt
    assert not any("alpha: its clock" in note for note in report.notes())


@pytest.mark.usefixtures("patience")
def test_another_copy_of_the_code(tmp_path: Path) -> None:
    for package in ("launcher", "ftcore"):
        shutil.copytree(ROOT / package, tmp_path / "code" / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "code/ftcore/dist.py").open("a") as file:
        file.write("# changed\n")

    def transport(host: Host, command: str) -> tuple[str, ...]:
        # This host has its own files where the others have theirs.
        moved = f"import sys, os; kept = os.walk; os.walk = lambda folder: kept(folder.replace({str(ROOT)!r}, {str(tmp_path / 'code')!r}));"
        return local_argv(command.replace("'import sys;", '"' + moved).replace("))'", '))"') if host.name == "beta" else command)

    hosts = (Host(name="alpha", slots=1), Host(name="beta", slots=1))
    report = check(hosts, CheckOptions(transport=transport, run_parent=tmp_path, cache=tmp_path))
    assert [(each.host, each.check) for each in report.errors] == [("beta", "code")], report.errors
    assert "ftlaunch's code in" in report.errors[0].what and "is not the same as here" in report.errors[0].what
