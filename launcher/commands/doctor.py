"""`ftlaunch doctor`: what happened to a run; or, without one, whether the hosts are fit for a launch. Starts no rank."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.verb_options import FILE, FOLDER, env_file_option, filter_options, hosts_option, set_option

if TYPE_CHECKING:
    from launcher.preflight.finding import Report

NOT_FIT = 3
_TO_STDOUT = "-"
_OF_RUNS = ("run", "html", "json")
"""What may be given with a RUN."""
_LAUNCHERS = click.Choice(["ssh", "pdsh", "deepspeed", "srun"])


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """What the command line says."""

    run: Path | None
    html: bool
    hosts: Path | None
    include: str
    exclude: str
    spec: Path | None
    sets: tuple[str, ...]
    launcher: str | None
    master_addr: str | None
    master_port: int | None
    interface: str | None
    env_file: Path | None
    output: Path | None
    all_reduce: bool
    json: str | None


class DoctorCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> int:
        """The exit status: of a run 0; of hosts 0 when they are fit, 3 when not. Raises the FtError of what went wrong."""
        return run(DoctorOptions(**ctx.params))


command = DoctorCommand(
    "doctor",
    short_help="Say what happened to a run, and what helps; or check hosts before a launch.",
    help=(
        "With RUN: say what happened to that run, from what it recorded: why it failed or is slow, the evidence, what helps and by how much. "
        "Also written to RUN/findings.txt and RUN/findings.json. Exit status 0, whatever was found. "
        "Without RUN: ask all hosts at once whether they are fit for a launch: reachable, the same software, accelerators for the slots, "
        "connections between them, shared folders, limits. Prints a table and every finding with its fix. Exit status 0: fit, perhaps warned; 3: not fit."
    ),
    params=[
        click.Argument(["run"], type=FOLDER, required=False, metavar="[RUN]"),
        click.Option(["--html"], is_flag=True, help="With RUN: also write RUN/findings.html."),
        hosts_option(),
        *filter_options(),
        click.Option(["--spec"], type=FILE, help="A spec, for its `cluster` section. Default: as for launch."),
        set_option(),
        click.Option(["--launcher"], type=_LAUNCHERS, help="What will start the ranks; srun inside a Slurm job alone. Default: ssh."),
        click.Option(["--master-addr"], metavar="HOST", help="Address where the ranks shall meet. Default: found on the first host."),
        click.Option(["--master-port"], type=click.IntRange(1024, 65535), help="Its port. Default: a free one."),
        click.Option(["--interface"], metavar="NAME", help="Network interface of NCCL and gloo on every host. Default: found on each."),
        env_file_option(),
        click.Option(["--output", "-o"], type=FOLDER, help="The run's folder, as it will be given to launch. Default: below ./runs."),
        click.Option(["--all-reduce"], is_flag=True, help="Also sum 1 MiB over one rank a host, for real."),
        click.Option(["--json"], is_flag=False, flag_value=_TO_STDOUT, metavar="[FILE]", help="Write the report as JSON to FILE, or in place of the table."),
    ],
)


def run(given: DoctorOptions) -> int:
    """Looks, prints, and returns the exit status. Raises the FtError of a folder that holds no run, or of a wrong hostfile, spec or option."""
    if given.run is not None:
        return _run(given, given.run)
    if given.html:
        raise click.UsageError("--html is a page about a run: name it, `ftlaunch doctor RUN --html`")
    return _hosts(given)


def _run(given: DoctorOptions, folder: Path) -> int:
    """What happened to the run, or to each run of an array, in `folder`."""
    from launcher.findings.command import explain

    others = [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(given) if field.name not in _OF_RUNS and getattr(given, field.name)]
    if others:
        names = ", ".join(others).replace("--sets", "--set")
        raise click.UsageError(f"{names}: for a check of hosts, which has no RUN; to check the hosts of a run: ftlaunch doctor --hosts {folder}/hostfile")
    as_json = explain(folder, wants_html=given.html, is_quiet=given.json == _TO_STDOUT)
    if given.json == _TO_STDOUT:
        click.echo(as_json, nl=False)
    elif given.json is not None:
        _write(Path(given.json), as_json)
    return 0


def _hosts(given: DoctorOptions) -> int:
    from launcher.preflight.table import render_report

    report = _check(given)
    if given.json == _TO_STDOUT:
        click.echo(report.to_json(), nl=False)
    else:
        click.echo(render_report(report))
    if given.json not in (None, _TO_STDOUT):
        _write(Path(given.json or ""), report.to_json())
    return 0 if report.is_fit else NOT_FIT


def _check(given: DoctorOptions) -> Report:
    from launcher.commands.launch import say
    from launcher.environment import read_env_file
    from launcher.hostfile import same_machine_warnings
    from launcher.preflight.look import look_at_hosts
    from launcher.resolve import Options, read_and_resolve
    from launcher.transport import Reach, SshOptions

    variables = read_env_file(given.env_file) if given.env_file is not None else {}
    own_launcher = given.launcher if given.launcher != "srun" else None
    options = Options(
        spec_path=given.spec,
        hosts=given.hosts,
        sets=given.sets,
        include=given.include,
        exclude=given.exclude,
        launcher=own_launcher,
        master_addr=given.master_addr,
        master_port=given.master_port,
        interface=given.interface,
    )
    resolved = read_and_resolve(options).resolved
    cluster = resolved.spec.cluster
    for warning in same_machine_warnings(resolved.hosts):
        say(f"warning: {warning}", err=True)
    reach = Reach(launcher=given.launcher or cluster.launcher, ssh=SshOptions(options=cluster.ssh_options))
    folder = given.output.absolute().parent if given.output is not None else Path.cwd() / "runs"
    return look_at_hosts(resolved, reach, folder, variables, all_reduce=given.all_reduce)


def _write(path: Path, text: str) -> None:
    from ftcore.spec.errors import ClusterError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ClusterError(f"can't write {path}: {error.strerror}", where="--json", fix="name a file that can be written") from error
