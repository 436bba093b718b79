"""Preflight over a real sshd: hosts that answer, and each way in which one can be out of reach."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftcore.spec.errors import ClusterError
from ftcore.spec.resolved import Host
from launcher.preflight import check as checking
from launcher.preflight.channel import Probes
from launcher.preflight.check import CheckOptions, check, probe_transport
from launcher.preflight.finding import Report
from launcher.preflight.ssh_names import ssh_host_name
from launcher.transport import SshOptions
from tests.unit.live_processes import is_alive, wait_until
from tests.unit.ssh_server import SshServer, need_sshd, running_sshd

ASK = Probes.ask


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that answer are waited for until they do, however busy the machine is that all of them are."""
    monkeypatch.setattr(Probes, "ask", lambda self, orders, limit_s, *told: ASK(self, orders, 60.0, *told))


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    need_sshd()
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


def hosts(*names: str) -> tuple[Host, ...]:
    return tuple(Host(name=name, slots=1) for name in names)


def options(sshd: SshServer, folder: Path) -> CheckOptions:
    return CheckOptions(transport=sshd.argv, run_parent=folder / "runs", cache=folder / "cache")


def reasons(report: Report) -> dict[str, str]:
    """Host -> its first error."""
    return {finding.host: finding.what for finding in reversed(report.errors)}


def test_all_that_can_go_wrong_at_once(sshd: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # A16
    names = ("alpha", "beta", "hangs", "refuses", "silent", "stranger", "locked", "unknown")
    hanging = names.index("hangs")

    def ask(self: Probes, orders: dict[int, dict[str, Any]], limit_s: float, *told: Callable[[int], None]) -> dict[int, dict[str, Any]]:
        # All are asked at once; the limit is that of the one which hangs, when each other one has answered or ended.
        numbers = {place: self.probes[place].asked + 1 for place in orders}
        answers = ASK(self, orders, 0.0, *told)
        wait_until(
            lambda: all(numbers[place] in self.probes[place].answers or self.probes[place].status is not None for place in numbers if place != hanging), 60
        )
        return {place: self.probes[place].answers[number] for place, number in numbers.items() if number in self.probes[place].answers} | answers

    monkeypatch.setattr(Probes, "ask", ask)
    report = check(hosts(*names), options(sshd, tmp_path))
    assert [each.name for each in report.hosts if each.reached] == ["alpha", "beta"]
    found = reasons(report)
    assert "no answer within " in found["hangs"]
    assert "no ssh server listens there" in found["refuses"]
    assert "it does not answer (" in found["silent"] and "timed out" in found["silent"]
    assert "its host key is not known" in found["stranger"]
    assert "does not let this user in without a password" in found["locked"]
    assert "its name is unknown here" in found["unknown"]
    assert {"alpha", "beta"}.isdisjoint(found) and not report.is_fit
    with pytest.raises(ClusterError) as raised:
        report.require_fit()
    assert len(raised.value.problems) == 6 and all(problem.fix for problem in raised.value.problems)


def test_two_hosts_that_are_fit(sshd: SshServer, tmp_path: Path) -> None:
    report = check(hosts("alpha", "beta"), options(sshd, tmp_path))
    assert report.is_fit, report.errors
    report.require_fit()
    # Both are this machine.
    assert any("alpha and beta are one machine" in note for note in report.notes())
    alpha, beta = report.hosts
    assert alpha.facts["executable"] == beta.facts["executable"] == sys.executable
    assert alpha.facts["code"] == beta.facts["code"] != ""
    assert alpha.facts["reached_at"] == "127.0.0.1"
    assert report.shared == {"run": True, "cache": True}
    assert alpha.clock_skew_s is not None and alpha.clock_error_s is not None and abs(alpha.clock_skew_s) <= alpha.clock_error_s + 0.1
    assert not list(tmp_path.iterdir()), "the probe's files are gone"


def test_an_interpreter_that_is_missing(sshd: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # A16
    monkeypatch.setattr(checking.sys, "executable", "/opt/no such/python")
    report = check(hosts("alpha", "beta"), options(sshd, tmp_path))
    assert "alpha: lacks /opt/no such/python (" in reasons(report)["alpha"] and report.hosts[0].facts == {}
    assert "install it at that path on beta" in next(finding.fix for finding in report.errors if finding.host == "beta")


@pytest.mark.parametrize("name", ["-oProxyCommand=touch /tmp/owned", "$(touch owned)", "a b", "x;touch owned"])
def test_hostile_names_run_nothing(sshd: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    report = check(hosts(name), options(sshd, tmp_path))
    assert not report.is_fit and list(report.hosts[0].facts) == []
    assert not list(tmp_path.iterdir())


def test_ssh_is_asked_what_an_alias_means(sshd: SshServer) -> None:
    assert ssh_host_name(sshd.argv(Host(name="unknown", slots=1), "true")) == "no-such-host.invalid"
    assert ssh_host_name(("bash", "-c", "true")) == ""
    assert ssh_host_name(("/nowhere/ssh", "x")) == ""


def test_a_machine_without_ssh(tmp_path: Path) -> None:
    wish = CheckOptions(transport=lambda host, command: ("/nowhere/ssh", host.name), run_parent=tmp_path, cache=tmp_path)
    with pytest.raises(ClusterError, match="can't start /nowhere/ssh") as raised:
        check(hosts("alpha", "beta"), wish)
    assert "install" in raised.value.problems[0].fix


def test_how_probes_travel() -> None:
    remote = Host(name="node9.example", slots=1)
    for launcher in ("ssh", "pdsh", "deepspeed"):
        assert probe_transport(launcher, SshOptions(options=("-4",)))(remote, "true")[:1] == ("ssh",)
    assert probe_transport("srun", SshOptions())(remote, "true")[0] == "srun"


def test_pdsh_must_be_there_for_those_who_want_it(sshd: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking.shutil, "which", lambda name: None)
    wish = CheckOptions(transport=sshd.argv, run_parent=tmp_path, cache=tmp_path, launcher="pdsh")
    assert "needs pdsh" in reasons(check(hosts("alpha"), wish))[""]


def test_nothing_is_left_on_a_host(sshd: SshServer, tmp_path: Path) -> None:
    seen: list[int] = []
    kept = sshd.argv

    def noting(host: Host, command: str) -> tuple[str, ...]:
        return kept(host, f"echo $$ >> {tmp_path}/pids; {command}")

    check(hosts("alpha", "beta"), CheckOptions(transport=noting, run_parent=tmp_path, cache=tmp_path))
    seen = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(seen) == 2
    wait_until(lambda: not any(map(is_alive, seen)))
