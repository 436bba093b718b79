"""The report: its table, its JSON, and the trial all-reduce that it may hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcore import dist, reduce_check
from ftcore.spec.resolved import Host
from launcher.preflight.channel import Probes
from launcher.preflight.check import CheckOptions, check, ordered
from launcher.preflight.finding import Connection, Finding, HostReport, Report, error, warning
from launcher.preflight.reduce import reduce_command, run_all_reduce
from launcher.preflight.table import WIDTH, render_report
from launcher.preflight.trial import connection_findings
from launcher.preflight.waiting import waiting_line
from launcher.transport import local_argv
from tests.unit.preflight_facts import facts, gpus

LONG = "worker-with-a-long-name"


def local(host: Host, command: str) -> tuple[str, ...]:
    """Each host is a shell on this machine."""
    return local_argv(command)


def report_of(count: int, *findings: Finding, reached: bool = True) -> Report:
    """Hosts with GPUs."""
    hosts = tuple(
        HostReport(
            name=f"{LONG}-{number}",
            slots=8,
            reached=reached,
            facts=facts(f"h{number}", number, **gpus(8)) if reached else {},
            address=f"10.0.0.{number}",
            interface="eth0",
            clock_skew_s=0.5,
            clock_error_s=0.1,
        )
        for number in range(count)
    )
    connection = Connection(origin="a", target="b", address="10.0.0.1", port=1, is_master=True, seconds=0.001)
    return Report(
        hosts=hosts,
        findings=ordered(list(findings)),
        master_addr="10.0.0.0",
        master_port=29500,
        master_origin="what its name stands for",
        shared={"run": True, "cache": False},
        connections=(connection,),
        all_reduce={"seconds": 0.00123, "backend": "nccl", "hosts": dict.fromkeys("ab", 0.001)},
        elapsed_s=1.25,
    )


@pytest.mark.parametrize("count", [1, 2, 5, 8, 20])
def test_the_table_fits_a_terminal(count: int) -> None:
    what = "a finding " * 40
    text = render_report(report_of(count, warning("a", "x", what, "mend it"), error("b", "y", "broken", "repair it"), error("c", "y", "broken", "repair it")))
    lines = text.splitlines()
    assert max(map(len, lines)) <= WIDTH and not any(line.endswith(" ") for line in lines)
    assert text.count("error: broken") == 1 and "    fix: repair it" in lines
    assert text.index("error: broken") < text.index("warning: a finding")
    assert "all-reduce of 1 MiB over 2 ranks (nccl): 1.23 ms, sums right" in lines
    assert "shared by all: run folder yes, cache NO" in lines
    assert lines[-1].endswith("not fit, 1 error")
    assert f"{LONG}-0"[:6] in text and "+0.500 s"[:6] in text


def test_the_table_of_hosts_out_of_reach() -> None:
    text = render_report(report_of(2, reached=False))
    assert "NO" in text and "torch" not in text and "fit" in text.splitlines()[-1]


def test_the_json_says_what_the_table_says() -> None:
    report = report_of(2, warning("a", "x", "odd", "mend it"))
    told = json.loads(report.to_json())
    assert told["version"] == 1 and told["fit"] is True and len(told["hosts"]) == 2
    assert told["findings"] == [{"host": "a", "check": "x", "level": "warning", "what": "odd", "fix": "mend it"}]
    assert report.notes() == ("odd (mend it)",)


def test_failed_connections_are_told_together() -> None:
    def tried(target: str, reason: str, interface: str = "eth0") -> Connection:
        return Connection(origin="alpha", target=target, address=f"10.0.0.{len(target)}", port=7, is_master=False, interface=interface, error=reason)

    tries = [tried("beta", "no answer in 5 s"), tried("gamma", "no answer in 5 s"), tried("d", ""), tried("e", "", "eth9")]
    found = connection_findings(tries, {"alpha": "eth0"}, {"beta": ["eth1 (10.1.0.2)"], "gamma": []})
    assert next(each.fix for each in found if each.level == "error").endswith("(--interface NAME): beta also has eth1 (10.1.0.2)")
    assert sorted((each.level, each.what) for each in found) == [
        ("error", "alpha can't connect by eth0 to beta at 10.0.0.4 port 7, gamma at 10.0.0.5 port 7: no answer in 5 s"),
        ("warning", "alpha reaches e (10.0.0.1) by eth9, not by eth0 which it is told to use"),
    ]


def test_a_line_while_it_waits(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with waiting_line(sys.stderr) as show:
        show("asking")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with waiting_line(sys.stderr) as show:
        show("asking")
    assert capsys.readouterr().err == "\r\x1b[Kasking\r\x1b[K"


def test_an_all_reduce_between_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Probes.ask
    # Hosts that answer are waited for until they do, however busy the machine is that both of them are.
    monkeypatch.setattr(Probes, "ask", lambda self, orders, limit_s, *told: kept(self, orders, 120.0, *told))
    hosts = (Host(name="alpha", slots=1), Host(name="beta", slots=1))
    report = check(hosts, CheckOptions(transport=local, run_parent=tmp_path, cache=tmp_path, all_reduce=True, environment={"TOKEN": "secret"}))
    assert report.all_reduce is not None, report.errors
    assert report.all_reduce["bytes"] == 2**20 and report.all_reduce["backend"] == "gloo" and set(report.all_reduce["hosts"]) == {"alpha", "beta"}
    assert 0 < report.all_reduce["seconds"] < 5
    assert "secret" not in report.to_json()


def test_an_all_reduce_on_one_host_and_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = (Host(name="alpha", slots=2, slot_ids=(1, 3)),)
    measured, findings = run_all_reduce(hosts, local, ("127.0.0.1", 0, {0: "lo"}), {})
    assert measured is not None and not findings
    measured, (finding,) = run_all_reduce(hosts, local, ("127.0.0.1", 0, {0: "none9"}), {})
    assert measured is None and finding.level == "error" and "alpha: the trial all-reduce failed: " in finding.what and finding.fix
    monkeypatch.setattr(sys, "executable", "/no/python")
    _, (finding,) = run_all_reduce(hosts, local, ("127.0.0.1", 0, {}), {})
    assert "/no/python" in finding.what


def test_its_command_holds_no_secret() -> None:
    text = reduce_command(("10.0.0.1", "1", "0", "2", "eth0", "0"), {"HF_TOKEN": "secret", "PYTHONPATH": "/x y", "LD_LIBRARY_PATH": "/lib"})
    assert "secret" not in text and "/x y" in text and "LD_LIBRARY_PATH=/lib" in text
    assert text.endswith("-m ftcore.reduce_check 10.0.0.1 1 0 2 eth0 0")


def test_what_the_user_told_gloo_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth5")
    told = reduce_check.rank_environment(("10.0.0.1", "1", "0", "2", "eth0", "3"))
    assert "GLOO_SOCKET_IFNAME" not in told and told["NCCL_SOCKET_IFNAME"] == "=eth0" and told["LOCAL_RANK"] == "3"
    assert "NCCL_SOCKET_IFNAME" not in reduce_check.rank_environment(("10.0.0.1", "1", "0", "2", "", "0"))


def test_a_wrong_sum_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(tensor: torch.Tensor) -> None:
        tensor.mul_(2)

    def alone() -> dist.Ranks:
        return dist.Ranks(0, 1, 0, torch.device("cpu"))

    replaced: dict[str, Any] = {"start": alone, "barrier": lambda: None, "sum_in_place": doubled}
    for name, function in replaced.items():
        monkeypatch.setattr(dist, name, function)
    with pytest.raises(RuntimeError, match=r"the sum over 1 ranks is 2\.0, not 1\.0"):
        reduce_check.reduce_times()
