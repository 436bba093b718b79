"""The probe itself on this machine: the program that is sent, its answers, its end, and the trial of connections between processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftcore.spec.resolved import Host
from launcher.preflight import program as program_module
from launcher.preflight import trial
from launcher.preflight.accelerators import accelerator_facts, parse_query, visible
from launcher.preflight.channel import Probes
from launcher.preflight.check import CheckOptions, check
from launcher.preflight.code_digest import code_digest, find_root
from launcher.preflight.facts import gather, within
from launcher.preflight.host_side import MARK, exchange
from launcher.preflight.meeting import connect, own_address
from launcher.preflight.program import SHELL_MARK, probe_command, probe_program
from launcher.preflight.shared_folders import is_seen_here, nearest_folder, probe_files, shared_findings
from launcher.transport import local_argv
from tests.unit.live_processes import ROOT, is_alive, wait_until

HOSTS = (Host(name="alpha", slots=1), Host(name="beta", slots=1))


def local(host: Host, command: str) -> tuple[str, ...]:
    """Each host is a shell on this machine."""
    return local_argv(command)


def ask(*orders: dict[str, Any], python: tuple[str, ...] = (sys.executable, "-I", "-S")) -> list[dict[str, Any]]:
    """What a probe in a bare Python answers."""
    text = probe_program()
    process = subprocess.Popen((*python, "-c", f"import sys; exec(sys.stdin.buffer.read({len(text)}))"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    with process:
        process.stdin.write(text + b"".join(json.dumps({**order, "id": number}).encode() + b"\n" for number, order in enumerate(orders)))
        process.stdin.flush()
        lines = [process.stdout.readline().decode() for _ in orders]
        process.stdin.close()
        assert process.wait(60) == 0
    assert all(line.startswith(MARK) for line in lines)
    return sorted((json.loads(line.removeprefix(MARK)) for line in lines), key=lambda answer: int(answer["id"]))


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that answer are waited for until they do, however busy the machine is that all of them are."""
    kept = Probes.ask
    monkeypatch.setattr(Probes, "ask", lambda self, orders, limit_s, *told: kept(self, orders, 60.0, *told))


REQUEST: dict[str, Any] = {"do": "facts", "environment": {}, "import_root": str(ROOT), "python_path": [], "folders": {}, "names": []}


def test_it_needs_nothing_but_a_python(tmp_path: Path) -> None:
    request = {**REQUEST, "folders": {"run": str(tmp_path), "cache": "/no/such"}, "names": ["localhost", "no-such-host.invalid"]}
    before = time.time()
    facts, clock = ask(request, {"do": "time"})
    assert before <= clock["time"] <= time.time()
    assert facts["code"] == code_digest(str(ROOT)) and facts["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.")
    assert facts["folders"]["run"]["exists"] and facts["folders"]["run"]["free"] > 0 and not facts["folders"]["cache"]["exists"]
    assert facts["names"]["no-such-host.invalid"] == [] and "127.0.0.1" in facts["names"]["localhost"] + ["127.0.0.1"]
    assert facts["late"] == [] and facts["failed"] == {} and facts["cores"] >= 1
    # A bare Python finds no site-packages.
    assert facts["versions"]["torch"] == ""


def test_versions_are_those_that_ranks_would_import(tmp_path: Path) -> None:
    (tmp_path / "torch-9.9.dist-info").mkdir()
    (tmp_path / "torch-9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n")
    assert gather(REQUEST)["versions"]["torch"] not in ("", "9.9")
    assert gather({**REQUEST, "python_path": [str(tmp_path)]})["versions"]["torch"] == "9.9"


def test_an_order_that_fails_is_answered() -> None:
    assert ask({"do": "connect"}) == [{"id": 0, "error": "KeyError: 'targets'"}]


def test_a_python_that_is_too_old_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_module, "OLDEST_PYTHON", (99, 1))
    ended = subprocess.run([sys.executable, "-c", "import sys; exec(sys.stdin.buffer.read())"], input=probe_program(), capture_output=True, check=False)
    assert ended.returncode == 1 and b"is older than 99.1" in ended.stderr and b"Traceback" not in ended.stderr


def test_a_path_with_everything_in_it(tmp_path: Path) -> None:
    odd = tmp_path / 'it\'s $HOME "a"; \\b'
    odd.mkdir()
    (odd / "python").symlink_to(sys.executable)
    command = probe_command(str(odd / "python"), len(b"print(sys.stdin.readline())"))
    ended = subprocess.run(["sh", "-c", command], input=b"print(sys.stdin.readline())given\n", capture_output=True, check=False)
    assert ended.stdout.decode().split() == [SHELL_MARK, "given"]


def test_slow_facts_do_not_hold_up_the_others() -> None:
    never = threading.Event()

    def hang() -> dict[str, Any]:
        never.wait(600)
        return {}

    def fail() -> dict[str, Any]:
        raise OSError("gone")

    tasks: dict[str, Callable[[], dict[str, Any]]] = {"folder run": hang, "machine": fail, "a": lambda: {"names": {"x": 1}}, "b": lambda: {"names": {"y": 2}}}
    # The others are done at once, and need no more than to be let run.
    told = within(tasks, 5.0)
    never.set()
    assert told == {"late": ["folder run"], "failed": {"machine": "OSError: gone"}, "names": {"x": 1, "y": 2}}


def test_accelerators_are_read_and_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = "0, GPU-aa, NVIDIA H200, 143771, 143000, 580.1\n1, GPU-ab, NVIDIA H200, [N/A], [N/A], 580.1\nnoise\n"
    gpus, driver = parse_query(listing)
    assert driver == "580.1" and [gpu["memory_total"] for gpu in gpus] == [143771 * 2**20, None]
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{listing}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert [gpu["uuid"] for gpu in accelerator_facts({"CUDA_VISIBLE_DEVICES": "1,0"})["accelerators"]] == ["GPU-ab", "GPU-aa"]
    told = accelerator_facts({"DS_ACCELERATOR": "cpu"})
    assert told["accelerators"] == [] and told["installed"] == 2 and told["accelerator_note"] == ""
    assert [gpu["index"] for gpu in accelerator_facts({"CUDA_VISIBLE_DEVICES": "MIG-1"})["accelerators"]] == [-1]
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'no driver' >&2; exit 9\n")
    assert accelerator_facts({})["accelerator_note"] == "nvidia-smi: no driver"


@pytest.mark.parametrize(
    ("mask", "places"),
    [(None, [0, 1, 2]), ("", []), ("2,0", [2, 0]), ("0,9,1", [0]), ("1,1", [1]), ("GPU-b", [1]), ("GPU-", []), ("-1", []), ("MIG-1,0", [None, 0]), ("²", [])],
)
def test_masks_are_read_as_cuda_reads_them(mask: str | None, places: list[int | None]) -> None:
    assert visible(mask, ["GPU-a", "GPU-b", "GPU-c"]) == places


def test_the_digest_is_of_the_code(tmp_path: Path) -> None:
    assert code_digest(str(tmp_path)) == ""
    for package in ("launcher", "ftcore/spec"):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "a.py").write_text("1")
    before = code_digest(str(tmp_path))
    (tmp_path / "ftcore/spec/a.pyc").write_text("x")
    assert before and code_digest(str(tmp_path)) == before
    (tmp_path / "ftcore/spec/a.py").rename(tmp_path / "ftcore/spec/b.py")
    assert code_digest(str(tmp_path)) != before
    assert find_root("/given", []) == "/given" and find_root("", [str(ROOT)]) == str(ROOT) and find_root("", [str(tmp_path / "none")]) == ""


def test_a_folder_that_is_not_shared(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    with probe_files({"run": here, "cache": tmp_path / "missing"}, "t0ken") as files:
        (problem,) = files.problems
        assert "can't write to" in problem.what
        shared = exchange(files.order("1"))
        assert not list(shared_findings("beta", shared, files, "1")) and is_seen_here(files, "run", "1")
        # The same, as if `there` were at this path on the other host.
        elsewhere = exchange({**files.order("2"), "files": {"run": files.paths["run"].replace("/here/", "/there/")}})
        ((name, finding),) = shared_findings("beta", elsewhere, files, "2")
        assert name == "run" and "a file that this machine wrote is not seen there" in finding.what and "--output" in finding.fix
        assert "did not answer" in next(shared_findings("beta", None, files, "1"))[1].what
        copy = {"folders": {"run": {"seen": True, "error": ""}}}
        assert "copy or an overlay" in next(shared_findings("beta", copy, files, "3"))[1].what
        read_only = {"folders": {"run": {"seen": True, "error": "Read-only file system"}}}
        assert "can't write" in next(shared_findings("beta", read_only, files, "3"))[1].what
    assert not list(here.iterdir()) and not list(there.iterdir())
    assert nearest_folder(tmp_path / "a/b/c") == tmp_path


def test_connections_that_fail_and_the_wrong_listener() -> None:
    # A port that is taken, so that nobody else comes to listen there, and where nobody listens.
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        refused = connect({"to": 1, "address": "127.0.0.1", "port": closed.getsockname()[1], "greeting": "x"})
    assert refused["error"] == "Connection refused" and refused["interface"] == "lo"
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            made, _ = other.accept()
            made.sendall(b"SSH-2.0-x\r\n")
            made.close()

        threading.Thread(target=answer, daemon=True).start()
        assert connect({"to": 1, "address": "127.0.0.1", "port": other.getsockname()[1], "greeting": "x" * 64})["error"] == "something else answers there"
    assert "error" in connect({"to": 1, "address": "no-such-host.invalid", "port": 1, "greeting": "x"})


def test_the_own_address_of_an_interface() -> None:
    own = {"lo": ("127.0.0.1",), "eth1": ("fe80::1", "2001:db8::1", "198.51.100.1"), "ib0": ("2001:db8::2",)}
    assert own_address("eth1", ("127.0.0.1", 9), own) == "198.51.100.1"
    assert own_address("ib0", ("127.0.0.1", 9), own) == "2001:db8::2"
    assert own_address("none", ("127.0.0.1", 9), own) == ""
    assert own_address("", ("127.0.0.1", 9), own) == "127.0.0.1"


@pytest.mark.usefixtures("patience")
def test_a_master_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        report = check(HOSTS, CheckOptions(transport=local, run_parent=tmp_path, cache=tmp_path, master_port=port))
    assert [finding.what for finding in report.errors] == [f"alpha: the master port {port} is in use there"]
    assert report.master_port == port


def test_many_hosts_try_a_ring_and_the_first() -> None:
    listening = {place: {"address": f"10.0.0.{place}", "port": 1} for place in range(12)} | {5: {"error": "x"}}
    targets = trial._targets(listening, dict.fromkeys(range(12), "x"), 12)
    assert [target["to"] for target in targets[3]] == [0, 4] and [target["to"] for target in targets[4]] == [0, 6]
    assert [target["to"] for target in targets[11]] == [0] and [target["to"] for target in targets[0]] == [1]


@pytest.mark.usefixtures("patience")
def test_login_scripts_that_print(tmp_path: Path) -> None:
    def noisy(host: Host, command: str) -> tuple[str, ...]:
        return local_argv(f"echo Welcome to {host.name}; {command}")

    report = check(HOSTS[:1], CheckOptions(transport=noisy, run_parent=tmp_path, cache=tmp_path))
    assert report.hosts[0].reached and any("login scripts print to stdout ('Welcome to alpha')" in note for note in report.notes())


def test_hosts_that_hang_at_the_worst_times_cost_20_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is waited for longer than 17 s from the start on; to end what is stuck then takes 3 s at most."""

    def transport(host: Host, command: str) -> tuple[str, ...]:
        stuck = f"echo {SHELL_MARK}; trap '' TERM; sleep 600; sleep 600"
        return local_argv(stuck if host.name == "gamma" else f"echo $$ > {tmp_path}/{host.name}; {command}")

    def stop_beta(text: str) -> None:
        # It has told its facts, and gamma is still waited for.
        if text == "asking 3 hosts: 2 answered":
            os.kill(int((tmp_path / "beta").read_text()), signal.SIGSTOP)

    waits: list[float] = []
    kept = Probes.ask

    def asks(self: Probes, orders: dict[int, dict[str, Any]], limit_s: float, *told: Callable[[int], None]) -> dict[int, dict[str, Any]]:
        waits.append(time.monotonic() - began + limit_s)
        return kept(self, orders, limit_s, *told)

    monkeypatch.setattr(Probes, "ask", asks)
    began = time.monotonic()
    report = check((*HOSTS, Host(name="gamma", slots=1)), CheckOptions(transport=transport, run_parent=tmp_path, cache=tmp_path, progress=stop_beta))
    assert len(waits) > 3 and max(waits) < 17.5 and time.monotonic() - began < 60
    assert {(each.host, each.check) for each in report.errors} >= {("gamma", "python"), ("beta", "shared")}
    wait_until(lambda: not is_alive(int((tmp_path / "beta").read_text())))


def test_probes_end_with_the_launcher(tmp_path: Path) -> None:
    body = f"""
        import time
        from launcher.preflight.channel import Probes
        from launcher.preflight.program import probe_command, probe_program
        program = probe_program()
        command = "echo $$ >> {tmp_path}/pids; " + probe_command({sys.executable!r}, len(program))
        probes = Probes([("bash", "-c", command)] * 2, program)
        print(len(probes.ask({{0: {{"do": "time"}}, 1: {{"do": "time"}}}}, 60)), flush=True)
        time.sleep(600)
    """
    launcher = subprocess.Popen([sys.executable, "-c", textwrap.dedent(body)], cwd=ROOT, stdout=subprocess.PIPE)
    assert launcher.stdout is not None and launcher.stdout.readline() == b"2\n"
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2 and all(map(is_alive, pids))
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    launcher.stdout.close()
    wait_until(lambda: not any(map(is_alive, pids)))


def test_a_stuck_command_is_killed_with_all_it_started() -> None:
    with Probes([("bash", "-c", "sleep 600 & echo $! >&2; cat > /dev/null & exec sleep 601")], b"x" * 300_000) as probes:
        began = time.monotonic()
        assert probes.ask({0: {"do": "time"}}, 0.5) == {}
        wait_until(lambda: probes.probes[0].stderr.strip().isdigit())
        child = int(probes.probes[0].stderr)
    assert time.monotonic() - began < 60
    wait_until(lambda: not is_alive(child))
