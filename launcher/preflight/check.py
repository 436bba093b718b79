"""Preflight: every host is asked at once what it is, and they try to reach each other. Bounded in time, whatever a host does."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcore.spec.errors import ClusterError
from ftcore.spec.resolved import Host
from launcher.environment import import_root
from launcher.interfaces import explicit_interface
from launcher.preflight.across_rules import across_findings, clock_findings
from launcher.preflight.channel import Probes
from launcher.preflight.code_digest import code_digest
from launcher.preflight.finding import Finding, HostReport, Report, error, warning
from launcher.preflight.host_rules import host_findings
from launcher.preflight.program import probe_command, probe_program
from launcher.preflight.reduce import run_all_reduce
from launcher.preflight.shared_folders import nearest_folder, probe_files, shared_findings
from launcher.preflight.ssh_names import SshAddresses
from launcher.preflight.trial import Answers, Trial, Wish, run_trial
from launcher.preflight.unreachable import Silence, explain
from launcher.topology import is_local
from launcher.transport import Reach, SshOptions, Transport

FACTS_LIMIT_S = 11.0
"""After this a host counts as out of reach; ssh gives up earlier."""
LIMIT_S = 17.0
"""For everything but the all-reduce and the end of the probes."""
_CLOCK_ROUNDS = 3
_LOOPBACK = "127.0.0.1"
_SENT = ("CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR")
"""Variables that facts depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What the hosts must be fit for."""

    transport: Transport
    run_parent: Path
    """Where the run's folder lies or will lie: it, or the nearest folder above that exists, must be shared."""
    cache: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that ranks get on every host; a host's own are added. Only names that preflight knows are sent, and no value is told."""
    launcher: str = "ssh"
    """What will start the ranks; pdsh and deepspeed need a program on this machine."""
    master_addr: str = ""
    master_port: int | None = None
    interface: str = ""
    all_reduce: bool = False
    progress: Callable[[str], None] = lambda text: None
    """Hears what is being done."""


def check(hosts: tuple[Host, ...], options: CheckOptions) -> Report:
    """Asks all hosts and compares. Raises ClusterError when this machine can't even start ssh (or the like)."""
    begun = time.monotonic()
    program = probe_program()
    command = probe_command(sys.executable, len(program))
    argvs = [options.transport(host, command) for host in hosts]
    named = SshAddresses(argvs[0], hosts[0].name)
    try:
        with Probes(argvs, program) as probes:
            session = _Session(hosts, options, probes, begun + LIMIT_S)
            session.findings += _tool_findings(options.launcher)
            session.run(named)
    except OSError as failure:
        raise ClusterError(f"can't start {argvs[0][0]}: {failure.strerror}", where="preflight", fix=f"install {argvs[0][0]} on this machine") from failure
    measured, findings = None, session.findings
    if options.all_reduce and not any(finding.level == "error" for finding in findings):
        options.progress("all-reduce of 1 MiB over one rank a host ...")
        measured, more = run_all_reduce(hosts, options.transport, session.meeting_place(), options.environment)
        findings = findings + more
    return session.report(findings, measured, time.monotonic() - begun)


def probe_transport(launcher: str, ssh: SshOptions) -> Transport:
    """How the probes get to hosts whose ranks `launcher` will start: by srun inside a Slurm job, else by ssh, which pdsh and deepspeed use too.

    pdsh itself hands no stdin on, over which a probe is led.
    """
    return Reach(launcher="srun" if launcher == "srun" else "ssh", ssh=ssh).argv


def _tool_findings(launcher: str) -> list[Finding]:
    if launcher not in ("pdsh", "deepspeed") or shutil.which("pdsh") is not None:
        return []
    return [error("", "pdsh", f"--launcher {launcher} needs pdsh, which this machine does not have", "install pdsh, or use --launcher ssh")]


def ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    """Errors first; what is the same for several hosts is said once."""
    once: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        once.setdefault((finding.what, finding.fix), finding)
    return tuple(sorted(once.values(), key=lambda finding: finding.level != "error"))


class _Session:
    """One conversation with all hosts."""

    def __init__(self, hosts: tuple[Host, ...], options: CheckOptions, probes: Probes, deadline: float) -> None:
        self.findings: list[Finding] = []
        self._hosts = hosts
        self._names = tuple(host.name for host in hosts)
        self._options = options
        self._probes = probes
        self._deadline = deadline
        self._facts: Answers = {}
        self._skews: dict[int, tuple[float, float]] = {}
        self._shared: dict[str, bool | None] = {"run": None, "cache": None}
        self._trial: Trial | None = None
        self._folders = {"run": nearest_folder(options.run_parent), "cache": nearest_folder(options.cache)}
        self._interfaces = tuple(explicit_interface(host.interface, options.interface, {**options.environment, **host.environment}) for host in hosts)

    def run(self, named: SshAddresses) -> None:
        """Asks, shares, tries. Everything that is found is in `findings`."""
        self._ask_facts()
        if not self._facts:
            return
        reached = [(self._hosts[place], self._facts[place]) for place in sorted(self._facts)]
        world_size = sum(host.slots for host in self._hosts)
        for host, facts in reached:
            self.findings += host_findings(host, facts, world_size)
        self.findings += across_findings(reached, code_digest(str(Path(__file__).resolve().parents[2])))
        self._ask_clocks()
        if len(self._hosts) > 1 or not is_local(self._hosts[0]):
            self._share()
        if len(self._facts) > 1 and 0 in self._facts:
            self._options.progress("trying the connections between the hosts ...")
            wish = Wish(master_addr=self._options.master_addr, master_port=self._options.master_port or 0, interfaces=self._interfaces)
            self._trial = run_trial(self._names, self._facts, wish, named.get(1.0), self._ask)
            self.findings += self._trial.findings

    def meeting_place(self) -> tuple[str, int, dict[int, str]]:
        """Address, port and each host's interface for an all-reduce."""
        if self._trial is None:
            return _LOOPBACK, self._options.master_port or 0, {0: self._interfaces[0] or "lo"}
        return self._trial.master.address, self._trial.master_port, self._trial.interfaces

    def report(self, findings: list[Finding], measured: dict[str, Any] | None, elapsed_s: float) -> Report:
        """All of it."""
        trial = self._trial
        alone = len(self._hosts) == 1
        place = (trial.master.address, trial.master.origin) if trial is not None else (_LOOPBACK, "one host alone") if alone else ("", "")
        return Report(
            hosts=tuple(self._host_report(number) for number in range(len(self._hosts))),
            findings=ordered(findings),
            master_addr=self._options.master_addr or place[0],
            master_port=trial.master_port if trial is not None and trial.master_port else self._options.master_port or 0,
            master_origin="as asked for" if self._options.master_addr else place[1],
            shared=self._shared,
            connections=tuple(trial.connections) if trial is not None else (),
            all_reduce=measured,
            elapsed_s=elapsed_s,
        )

    def _host_report(self, number: int) -> HostReport:
        host, trial = self._hosts[number], self._trial
        skew, doubt = self._skews.get(number, (None, None))
        return HostReport(
            name=host.name,
            slots=host.slots,
            reached=number in self._facts,
            facts=self._facts.get(number, {}),
            address=trial.addresses.get(number, "") if trial is not None else "",
            interface=(trial.interfaces.get(number, "") if trial is not None else "") or self._interfaces[number],
            clock_skew_s=skew,
            clock_error_s=doubt,
        )

    def _ask(self, orders: dict[int, dict[str, Any]], limit_s: float) -> Answers:
        return self._probes.ask(orders, min(limit_s, self._deadline - time.monotonic()))

    def _ask_facts(self) -> None:
        begun = time.monotonic()
        count = len(self._hosts)
        told = -1

        def tell(answered: int) -> None:
            nonlocal told
            if answered != told:
                told = answered
                self._options.progress(f"asking {count} host{'s' if count > 1 else ''}: {answered} answered")

        orders = {place: self._facts_order(host) for place, host in enumerate(self._hosts)}
        answers = self._probes.ask(orders, FACTS_LIMIT_S, tell)
        self._facts = {place: {key: answer[key] for key in answer if key != "id"} for place, answer in answers.items() if "late" in answer}
        waited_s = time.monotonic() - begun
        for place, (name, probe) in enumerate(zip(self._names, self._probes.probes, strict=True)):
            if probe.noise and place in self._facts:
                what = f"{name}: its login scripts print to stdout ({probe.noise[0][:60]!r})"
                self.findings.append(warning(name, "shell", what, "let them print only when the shell is interactive ([[ $- == *i* ]])"))
            if place not in self._facts:
                silence = Silence(
                    host=name,
                    by_hand=self._by_hand(place),
                    python=sys.executable,
                    status=probe.status,
                    shell_ran=probe.shell_ran,
                    stderr="\n".join([*probe.noise, probe.stderr]),
                    waited_s=waited_s,
                )
                self.findings.append(explain(silence))

    def _by_hand(self, place: int) -> str:
        host = self._hosts[place]
        program = os.path.basename(self._options.transport(host, "")[0])
        if program != "ssh":
            return f"srun -w {host.name}" if program == "srun" else program
        port = f"-p {host.port} " if host.port else ""
        return f"ssh {port}{host.user}@{host.name}" if host.user else f"ssh {port}{host.name}"

    def _facts_order(self, host: Host) -> dict[str, Any]:
        environment = {**self._options.environment, **host.environment}
        return {
            "do": "facts",
            "environment": {name: environment[name] for name in _SENT if name in environment},
            "import_root": import_root(),
            "python_path": [part for part in environment.get("PYTHONPATH", "").split(":") if part],
            "folders": {"work": str(Path.cwd()), **{name: str(folder) for name, folder in self._folders.items()}},
            "names": list(self._names),
        }

    def _ask_clocks(self) -> None:
        """The difference of the clocks, from the quickest of some rounds: it can be wrong by half of the way there and back."""
        for _ in range(_CLOCK_ROUNDS):
            sent = time.time()
            answers = self._ask({place: {"do": "time"} for place in self._facts}, 1.0)
            for place, answer in answers.items():
                arrived = self._probes.probes[place].answered_at[answer["id"]]
                skew, doubt = answer["time"] - (sent + arrived) / 2, (arrived - sent) / 2
                if place not in self._skews or doubt < self._skews[place][1]:
                    self._skews[place] = (skew, doubt)
            if len(answers) < len(self._facts):
                # One that has stopped answering would cost as much time again.
                break
        self.findings += clock_findings({self._names[place]: skew for place, skew in self._skews.items()})

    def _share(self) -> None:
        """The exchange of files in both folders."""
        with probe_files(self._folders, secrets.token_hex(16)) as files:
            self.findings += files.problems
            answers = self._ask({place: files.order(str(place)) for place in self._facts}, 4.0)
            self._shared = dict.fromkeys(files.paths, True)
            for place in self._facts:
                for name, finding in shared_findings(self._names[place], answers.get(place), files, str(place)):
                    self._shared[name] = False
                    self.findings.append(finding)
