"""What pdsh and DeepSpeed's launcher are told, as text; and the two small programs of theirs that run on hosts."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from ftcore.spec.errors import CheckpointError, ClusterError
from ftcore.spec.resolved import Host
from ftcore.spec.run_dir import RunDir
from launcher import sweep_host
from launcher.backends import deepspeed_command
from launcher.backends.base import Launch
from launcher.backends.deepspeed_command import deepspeed_argv, deepspeed_environment, render_plain_hosts, write_deepspeed_files
from launcher.backends.lines import environment_notes
from launcher.json_lines import Message
from launcher.node import read_header
from launcher.processes import LAUNCH_ID
from launcher.rank_start import node_of
from launcher.transport import Reach, SshOptions, pdsh_argv, pdsh_environment
from tests.unit.live_processes import ROOT, is_alive, wait_until
from tests.unit.local_launch import resolved_for

ALPHA, BETA = Host(name="alpha", slots=2), Host(name="beta", slots=1)
SECRET = "hf_" + "planted" * 5


def launch_on(folder: Path, *hosts: Host, launcher: str = "deepspeed") -> Launch:
    run_dir = RunDir(folder / "it's a $run")
    run_dir.path.mkdir(exist_ok=True)
    for rank in range(len(hosts)):
        run_dir.node_script(rank).write_text(
            f'export A="${{A:-1}}"\nexec py -m launcher.node \\\n    --nodes 2 "$@" \\\n    -- py -m ftcore.run \'{rank} $x\'\n'
        )
    environment = {"PATH": "/bin", LAUNCH_ID: "mark", "HF_TOKEN": SECRET, "NCCL_DEBUG": "a 'b'\n$c", "MLFLOW_TRACKING_TOKEN": SECRET, "PYTHONHASHSEED": "1"}
    return Launch(
        run_dir=run_dir,
        resolved=replace(resolved_for(), hosts=hosts),
        attempt=1,
        environment=environment,
        lock_handle=0,
        prepare=(),
        export=None,
        reach=Reach(launcher=launcher, ssh=SshOptions(options=("-oUser=me",))),
        master_addr="10.0.0.1",
        master_port=1234,
    )


def header(launch: Launch, rank: int) -> Message:
    return read_header(launch.run_dir.attempt_logs(1) / f"host_{rank}.json")


def test_pdsh_expands_nothing_of_a_command() -> None:
    assert pdsh_argv(BETA, "echo 100% %h") == ("pdsh", "-N", "-S", "-b", "-w", "beta", "echo 100%% %%h")


def test_pdsh_takes_an_address_with_colons_for_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PDSH_RCMD_TYPE", raising=False)
    assert "ssh:me@fd00::1" in pdsh_argv(Host(name="fd00::1", slots=1, user="me"), "true")


def test_pdsh_gets_the_options_of_ssh_behind_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # A14
    monkeypatch.setenv("PDSH_SSH_ARGS_APPEND", "-q")
    monkeypatch.setenv("FTLAUNCH_SSH_ARGS", "-F /cfg -oControlPath=/x/%h")
    monkeypatch.delenv("PDSH_RCMD_TYPE", raising=False)
    made = pdsh_environment((22,), SshOptions(options=("-oUser=me",)))
    options = "-q -F /cfg -oControlPath=/x/%%h -oUser=me -p 22 -oBatchMode=yes -oForwardX11=no"
    assert made == {"PDSH_RCMD_TYPE": "ssh", "PDSH_SSH_ARGS_APPEND": options}
    monkeypatch.setenv("PDSH_RCMD_TYPE", "exec")
    assert pdsh_environment((), SshOptions())["PDSH_RCMD_TYPE"] == "exec"


def test_what_pdsh_can_not_be_told_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"take this option of ssh apart at its blanks: -oProxyCommand=nc a b"):
        pdsh_environment((0,), SshOptions(options=("-oProxyCommand=nc a b",)))
    with pytest.raises(ClusterError, match=r"by one port of ssh; these are 22, 2222"):
        pdsh_environment((22, 2222), SshOptions())


def test_deepspeed_is_told_nothing_that_a_shell_would_change(tmp_path: Path) -> None:
    argv = deepspeed_argv(launch_on(tmp_path, ALPHA, BETA))
    assert argv[argv.index("--master_addr") :][:4] == ("--master_addr", "10.0.0.1", "--master_port", "1234")
    assert argv[-4:-1] == (sys.executable, "-m", "launcher.rank_start")
    assert "--include" not in argv
    some = deepspeed_argv(launch_on(tmp_path, Host(name="alpha", slots=2, slot_ids=(0, 3)), BETA))
    assert some[some.index("--include") + 1] == "alpha:0,3@beta:0"
    assert render_plain_hosts((Host(name="alpha", slots=2, slot_ids=(0, 3), port=9), replace(BETA, user="me"))) == "alpha slots=4\nme@beta slots=1\n"


def test_deepspeed_gets_no_variable_that_it_would_write_into_a_command_line(tmp_path: Path) -> None:
    environment = deepspeed_environment(launch_on(tmp_path, ALPHA, BETA))
    assert {name for name in environment if name.startswith(("MLFLOW", "NCCL", "PYTHON"))} <= {"PYTHONSAFEPATH", "PYTHONPATH"}
    assert Path(environment["DS_ENV_FILE"]).is_absolute()


def test_headers_on_disk_hold_no_secret(tmp_path: Path) -> None:
    launch = launch_on(tmp_path, ALPHA, replace(BETA, interface="eth1", environment={"OF_HOST": "1 2"}))
    write_deepspeed_files(launch)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and SECRET in path.read_text()]
    assert (launch.run_dir.attempt_logs(1) / "deepspeed_env").read_text() == f"{LAUNCH_ID}=mark\n"
    second = header(launch, 1)
    assert second["environment"]["NCCL_DEBUG"] == "a 'b'\n$c" and second["environment"]["OF_HOST"] == "1 2"
    node = node_of(second)
    assert (node.host, node.node_rank, node.first_rank, node.world_size, node.interface) == ("beta", 1, 2, 3, "eth1")
    assert node.command == ("py", "-m", "ftcore.run", "1 $x")
    notes = environment_notes(launch)
    assert "HF_TOKEN" not in notes[0] and "not sent to other hosts" in notes[1] and "HF_TOKEN, MLFLOW_TRACKING_TOKEN; log in" in notes[1]


def test_a_header_or_a_script_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"(?s)can't read .*all hosts share"):
        read_header(tmp_path / "none.json")
    launch = launch_on(tmp_path, ALPHA, BETA)
    launch.run_dir.node_script(1).write_text("nothing of a rank\n")
    with pytest.raises(CheckpointError, match=r"can't read .*node_01\.sh"):
        write_deepspeed_files(launch)


def test_what_deepspeed_can_not_start_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed_command.sys, "executable", "/odd path/$python")
    launch = launch_on(tmp_path, Host(name="fd00::1", slots=1, user="me"), Host(name="beta", slots=1, slot_ids=(2,)))
    with pytest.raises(ClusterError) as raised:
        write_deepspeed_files(launch)
    assert len(raised.value.problems) == 3
    assert all("--launcher ssh" in problem.fix for problem in raised.value.problems)


def test_a_swept_host_keeps_what_is_not_of_the_launch() -> None:
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "launcher.sweep_host", mark]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(["sleep", "600"], env={**environment, LAUNCH_ID: f"{mark}.0.1"}) as marked, subprocess.Popen(["sleep", "600"]) as other:
        assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout == "1\n"
        assert marked.wait(60) == -9
        assert is_alive(other.pid)
        other.kill()
    wait_until(lambda: not is_alive(other.pid))


def test_a_wrong_command_line_of_the_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep_host.main([]) == sweep_host.main(["a b"]) == 2
    assert "usage" in capsys.readouterr().err


def test_a_rank_whose_header_is_missing_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "launcher.rank_start", base64.urlsafe_b64encode(str(tmp_path).encode()).decode()]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT), "CROSS_RANK": "0"}, capture_output=True, text=True, check=False)
    assert ended.returncode == ClusterError.exit_status and "can't read" in ended.stderr
    assert not ended.stdout
