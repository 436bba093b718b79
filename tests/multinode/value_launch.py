"""A launch whose ranks write down their arguments and environment; as a program, `value_launch FOLDER`, it takes FOLDER/given.json and may run inside a job."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.run_dir import RunDir
from launcher.backends.base import Launch
from launcher.backends.hosts import run_launch
from launcher.environment import process_environment
from launcher.node_script import ScriptContext, render_node_script
from launcher.progress import Progress
from launcher.run_folder import locked, next_attempt, write_files
from launcher.transport import Reach, SshOptions
from tests.unit.live_processes import ROOT
from tests.unit.local_launch import resolved_for

RANK = """
import json, os, sys
seen = {"arguments": [os.fsencode(each).hex() for each in sys.argv[2:]], "environment": {name.decode(): value.hex() for name, value in os.environb.items()}}
with open(os.path.join(sys.argv[1], "rank_" + os.environ["RANK"] + ".json"), "w") as file:
    json.dump(seen, file)
"""
SOURCES = ("GIVEN", "SHELL", "SPEC", "HOST")
"""Where a value comes from: --env-file, the launching shell, cluster.environment, the hostfile."""


def write_given(folder: Path, hosts: list[str], launcher: str, values: list[str], master_addr: str) -> None:
    """FOLDER/given.json."""
    given = {"hosts": hosts, "launcher": launcher, "values": values, "master_addr": master_addr, "master_port": 29511}
    (folder / "given.json").write_text(json.dumps(given))


def launch(folder: Path) -> None:
    """Launches one rank on each host; afterwards FOLDER holds rank_N.json. Raises FtError when that fails."""
    given = json.loads((folder / "given.json").read_text())
    values, run_dir = given["values"], RunDir(folder / "run")
    run_dir.path.mkdir(exist_ok=True)
    (folder / "rank.py").write_text(RANK)
    shell = {**os.environ, **named("SHELL", values)}
    resolved = resolved_with(given)
    context = ScriptContext(
        run_dir=run_dir.path,
        launch_dir=ROOT,
        python=sys.executable,
        import_root=str(ROOT),
        master_addr=given["master_addr"],
        rank_command=(sys.executable, str(folder / "rank.py"), str(folder), *values),
        environment=resolved.spec.cluster.environment,
    )
    write_files({run_dir.node_script(rank): render_node_script(context, resolved.hosts, rank) for rank in range(len(resolved.hosts))})
    with locked(run_dir) as handle:
        variables = named("GIVEN", values)
        one = Launch(
            run_dir=run_dir,
            resolved=resolved,
            attempt=next_attempt(run_dir),
            environment=process_environment(shell, variables, launch_id=uuid.uuid4().hex, import_root=str(ROOT)),
            lock_handle=handle,
            prepare=("true",),
            export=None,
            variables=variables,
            reach=Reach(launcher=given["launcher"], ssh=SshOptions()),
            master_addr=given["master_addr"],
            master_port=given["master_port"],
        )
        run_launch(one, Progress(sys.stdout))


def resolved_with(given: dict[str, Any]) -> ResolvedSpec:
    """A resolved spec of these hosts, with values in the spec and on the hosts' lines."""
    plain = resolved_for()
    cluster = dataclasses.replace(plain.spec.cluster, environment=named("SPEC", given["values"]), forward_env=("SHELL_*",))
    hosts = tuple(Host(name=name, slots=1, environment=named("HOST", given["values"])) for name in given["hosts"])
    return dataclasses.replace(plain, hosts=hosts, spec=dataclasses.replace(plain.spec, cluster=cluster))


def named(source: str, values: list[str]) -> dict[str, str]:
    """The values under names that say where they come from."""
    return {f"{source}_{number}": value for number, value in enumerate(values)}


def differences(folder: Path, values: list[str], ranks: int, sources: tuple[str, ...] = SOURCES) -> list[str]:
    """What a rank did not get byte for byte."""
    wanted = [value.encode().hex() for value in values]
    found = []
    for rank in range(ranks):
        seen = json.loads((folder / f"rank_{rank}.json").read_text())
        found += [f"rank {rank}: arguments {seen['arguments']}"] if seen["arguments"] != wanted else []
        names = [(f"{source}_{number}", value) for source in sources for number, value in enumerate(wanted)]
        found += [f"rank {rank}: {name}={seen['environment'].get(name)}" for name, value in names if seen["environment"].get(name) != value]
    return found


if __name__ == "__main__":
    launch(Path(sys.argv[1]))
