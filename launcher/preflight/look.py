"""The look at a run's hosts that a launch and `ftlaunch doctor` have in common."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ftcore.spec.resolved import ResolvedSpec
from launcher.forwarding import rank_variables
from launcher.preflight.check import CheckOptions, check, probe_transport
from launcher.preflight.finding import Report
from launcher.preflight.waiting import waiting_line
from launcher.transport import Reach


def look_at_hosts(resolved: ResolvedSpec, reach: Reach, folder: Path, variables: Mapping[str, str], *, all_reduce: bool = False) -> Report:
    """Whether the hosts of a run whose folder is, or will be, `folder` are fit for it; `variables` are the user's. Raises like `check`."""
    cluster = resolved.spec.cluster
    with waiting_line(sys.stderr) as progress:
        options = CheckOptions(
            transport=probe_transport(reach.launcher, reach.ssh),
            run_parent=folder,
            cache=Path(resolved.cache_dir),
            environment=rank_variables(os.environ, cluster, variables),
            launcher=reach.launcher,
            master_addr=cluster.master_addr,
            master_port=cluster.master_port,
            interface=cluster.interface,
            all_reduce=all_reduce,
            progress=progress,
        )
        return check(resolved.hosts, options)
