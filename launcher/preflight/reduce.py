"""An all-reduce for real: one rank a host, over gloo or NCCL, as a run's ranks would do it."""

from __future__ import annotations

import shlex
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftcore.spec.resolved import Host
from launcher.environment import import_root
from launcher.preflight.channel import Probes
from launcher.preflight.finding import Finding, error
from launcher.preflight.unreachable import last_line
from launcher.transport import Transport

LIMIT_S = 60.0
"""For all of it; importing torch from a slow disk is most of that."""
_FOR_THE_START = ("LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables that a Python needs when it starts: they stand in the command, all others arrive on stdin."""
_FIX = "see what it says; NCCL_DEBUG=INFO says more, and GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME (--interface) choose the network"

Place = tuple[str, int, Mapping[int, str]]
"""Address and port where ranks meet, and each host's interface by its number."""


def run_all_reduce(hosts: tuple[Host, ...], transport: Transport, place: Place, environment: Mapping[str, str]) -> tuple[dict[str, Any] | None, list[Finding]]:
    """What was measured (`seconds`: of the slowest host, `bytes`, `backend`, `hosts`), or findings that say why nothing was. 60 s at most."""
    begun = time.monotonic()
    address, port, interfaces = place
    port = port or _free_port(address)
    argvs = []
    for rank, host in enumerate(hosts):
        arguments = (address, str(port), str(rank), str(len(hosts)), interfaces.get(rank, ""), str(min(host.slot_ids, default=0)))
        argvs.append(transport(host, reduce_command(arguments, {**environment, **host.environment})))
    with Probes(argvs, b"") as probes:
        orders = {rank: {"environment": {**environment, **host.environment}} for rank, host in enumerate(hosts)}
        answers = probes.ask(orders, LIMIT_S)
        findings = [
            error(host.name, "all_reduce", f"{host.name}: the trial all-reduce failed: {_reason(answers.get(rank), probes.probes[rank].stderr)}", _FIX)
            for rank, host in enumerate(hosts)
            if "seconds" not in answers.get(rank, {})
        ]
    if findings:
        return None, findings
    slowest = max(answers.values(), key=lambda answer: float(answer["seconds"]))
    each = {host.name: answers[rank]["seconds"] for rank, host in enumerate(hosts)}
    measured = {name: slowest[name] for name in ("seconds", "bytes", "backend")}
    return {**measured, "hosts": each, "address": address, "port": port, "elapsed_s": time.monotonic() - begun}, []


def reduce_command(arguments: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """Shell text for one rank of the trial, in the folder of the launch."""
    variables = {name: environment[name] for name in _FOR_THE_START if environment.get(name)}
    if import_root():
        variables["PYTHONPATH"] = ":".join(part for part in (import_root(), variables.get("PYTHONPATH", "")) if part)
    variables |= {"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    settings = [f"{name}={value}" for name, value in variables.items()]
    return f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(['env', *settings, sys.executable, '-m', 'ftcore.reduce_check', *arguments])}"


def _reason(answer: Mapping[str, Any] | None, stderr: str) -> str:
    if answer is not None and "error" in answer:
        return str(answer["error"])
    return last_line(stderr) or f"no word within {LIMIT_S:.0f} s"


def _free_port(address: str) -> int:
    """A port that is free on this machine now, for one host alone."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
