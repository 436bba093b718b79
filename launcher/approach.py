"""How a launch comes to its hosts: what reaches them, where the ranks meet, and whether they are fit for it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.errors import ClusterError, Problem
from ftcore.spec.resolved import Host, ResolvedSpec
from launcher.backends.base import LOOPBACK
from launcher.forwarding import forwarded
from launcher.hostfile import same_machine_warnings
from launcher.topology import check_local_launch, is_local, local_accelerators
from launcher.transport import Reach, SshOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Approach:
    """What was found out before anything is started."""

    reach: Reach
    master_addr: str
    """The address at which the ranks meet."""
    master_port: int | None
    """Its port; None: a free one is found when the ranks are started."""
    warnings: tuple[str, ...] = ()


class UnfitHostsError(ClusterError):
    """Hosts on which no rank could be started."""

    def __init__(self, problems: tuple[Problem, ...], hosts: set[str]) -> None:
        super().__init__(problems)
        self.hosts = hosts
        """Their names."""


def approach_hosts(resolved: ResolvedSpec, folder: Path, *, variables: Mapping[str, str] | None = None, launcher: str = "", starts: bool = True) -> Approach:
    """The approach to the hosts of a run whose folder is, or will be, `folder`; `variables` are the user's, `launcher` stands in for cluster.launcher.

    With `starts`, every host is looked at: raises ClusterError with all reasons why no rank could be started on them.
    """
    cluster, hosts = resolved.spec.cluster, resolved.hosts
    reach = Reach(launcher=launcher or cluster.launcher, ssh=SshOptions(options=cluster.ssh_options))
    warnings = same_machine_warnings(hosts)
    if not any(map(reach.is_remote, hosts)):
        if starts:
            check_local_launch(hosts, local_accelerators())
        return Approach(reach=reach, master_addr=cluster.master_addr or LOOPBACK, master_port=cluster.master_port, warnings=warnings)
    if not starts:
        return Approach(reach=reach, master_addr=cluster.master_addr or by_name(hosts), master_port=cluster.master_port, warnings=warnings)
    from launcher.preflight.check import CheckOptions, check, probe_transport

    options = CheckOptions(
        transport=probe_transport(reach.launcher, reach.ssh),
        launcher=reach.launcher,
        run_parent=folder,
        cache=Path(resolved.cache_dir),
        environment=forwarded(os.environ, {**cluster.environment, **(variables or {})}, cluster.forward_env).values,
        master_addr=cluster.master_addr,
        master_port=cluster.master_port,
        interface=cluster.interface,
        progress=_tell,
    )
    report = check(hosts, options)
    _tell("")
    if not report.is_fit:
        # What the others say of a host that can't be reached follows from that.
        gone = {finding.host for finding in report.errors if finding.host and finding.check == "reach"}
        try:
            report.require_fit()
        except ClusterError as error:
            raise UnfitHostsError(error.problems, gone or {finding.host for finding in report.errors if finding.host}) from error
    # Without orders a supervisor can't say which port is free on its host.
    port = cluster.master_port or (report.master_port if launcher_needs_port(reach) else None)
    return Approach(reach=reach, master_addr=report.master_addr, master_port=port, warnings=warnings + report.notes())


def launcher_needs_port(reach: Reach) -> bool:
    """Whether the port must be known before the ranks' supervisors are started."""
    return reach.launcher in ("pdsh", "deepspeed")


def by_name(hosts: tuple[Host, ...]) -> str:
    """Where the other ranks reach rank 0 as far as names tell: as the hostfile names its host, which loopback would not be for another machine."""
    if not is_local(hosts[0]):
        return hosts[0].name
    return LOOPBACK if len(hosts) == 1 else socket.gethostname()


def _tell(text: str) -> None:
    """What preflight is doing, for a person who waits at a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{f'preflight: {text}' if text else ''}")
        sys.stderr.flush()
