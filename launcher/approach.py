"""How a launch comes to its hosts: what reaches them, where the ranks meet, and whether they are fit for it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcore.spec.resolved import Host, ResolvedSpec
from launcher.backends.base import LOOPBACK
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
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Host's name -> what preflight heard from it; empty when the ranks are all on this machine."""


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
    from launcher.preflight.look import look_at_hosts

    report = look_at_hosts(resolved, reach, folder, variables or {})
    report.require_fit()
    # Without orders a supervisor can't say which port is free on its host.
    port = cluster.master_port or (None if all(map(reach.has_stdin, hosts)) else report.master_port)
    facts = {host.name: host.facts for host in report.hosts if host.reached}
    return Approach(reach=reach, master_addr=report.master_addr, master_port=port, warnings=warnings + report.notes(), facts=facts)


def by_name(hosts: tuple[Host, ...]) -> str:
    """Where the other ranks reach rank 0 as far as names tell: as the hostfile names its host, which loopback would not be for another machine."""
    if not is_local(hosts[0]):
        return hosts[0].name
    return LOOPBACK if len(hosts) == 1 else socket.gethostname()
