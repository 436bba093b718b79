"""`ftlaunch profile [SPEC | RUN]`: where the time of a few updates goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.verb_options import (
    FILE,
    FOLDER,
    cluster_options,
    env_file_option,
    filter_options,
    force_option,
    hosts_option,
    set_option,
    spec_options,
    zero_option,
)

if TYPE_CHECKING:
    from ftcore.spec.resolved import ResolvedSpec
    from ftcore.spec.run_dir import RunDir
    from launcher.approach import Approach
    from launcher.attempts import Manner
    from launcher.resolve import Resolution

AGAIN = "start the profile again: ftlaunch profile"
UPDATES, WARMUP = 3, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """What the command line says."""

    arguments: tuple[str, ...]
    spec: Path | None
    updates: int | None
    warmup: int | None
    ranks: str
    memory: bool
    hosts: Path | None
    zero: int | None
    sets: tuple[str, ...]
    output: Path | None
    as_json: bool
    include: str
    exclude: str
    launcher: str | None
    master_addr: str | None
    master_port: int | None
    interface: str | None
    max_restarts: int | None
    elastic: bool
    env_file: Path | None
    force: bool

    @property
    def trains(self) -> bool:
        """Whether something is asked for that only a new run can do."""
        chosen = (self.spec, self.updates, self.warmup, self.hosts, self.zero, self.launcher, self.master_addr, self.master_port, self.interface)
        named = (self.ranks, self.memory, self.sets, self.include, self.exclude, self.elastic, self.env_file, self.max_restarts, self.force)
        return any(each is not None for each in chosen) or any(named)


class ProfileCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        run(ProfileOptions(**ctx.params))


command = ProfileCommand(
    "profile",
    short_help="Where the time of a few updates goes: traces and a summary.",
    help="Train a few updates of the run that SPEC describes, in a folder of their own, with torch's profiler on the last of them, and sum up where their "
    "time goes: computing, communication, data, gaps, and the host. Leaves a Chrome trace a rank, summary.json and summary.html. "
    "With a RUN instead of a SPEC: sum up the traces that its `profiling` left; also any folder of torch's Chrome traces.",
    params=[
        click.Argument(["arguments"], nargs=-1, metavar="[SPEC | RUN] [KEY=VALUE]..."),
        click.Option(["--spec"], type=FILE, help="The spec, as for launch; the same as SPEC."),
        click.Option(["--updates"], type=click.IntRange(1, 1000), help=f"Updates that are recorded. Default: {UPDATES}."),
        click.Option(["--warmup"], type=click.IntRange(0, 100_000), help=f"Updates before them. Default: {WARMUP}."),
        click.Option(["--ranks"], default="", metavar="RANKS", help="Ranks that record: all, or such as 0,4-7. Default: all, at most 16 of them."),
        click.Option(["--memory"], is_flag=True, help="Record allocations as well."),
        hosts_option(),
        zero_option(),
        set_option(),
        click.Option(["--output", "-o"], type=FOLDER, help="The folder of the profile. Default: runs/TIME-MODEL-profile; for a RUN its profile/."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print summary.json instead of tables."),
        *filter_options(),
        *cluster_options(),
        env_file_option("the ranks"),
        force_option(),
    ],
)


def run(given: ProfileOptions) -> None:
    """Profiles a run, or sums up traces that are there. Raises the FtError of what went wrong."""
    existing = [Path(text) for text in given.arguments if Path(text).is_dir()]
    if not existing:
        run_dir = _profile(given)
        _tell(given, run_dir.path, run_dir.profile(0).parent)
        return
    if given.trains or len(given.arguments) > 1:
        raise click.UsageError(f"{existing[0]} is a folder whose traces are summed up; options of a run go with a SPEC")
    folder = existing[0].absolute()
    beside = folder / "profile"
    _tell(given, folder, (given.output or (beside if beside.is_dir() else folder)).absolute())


def _profile(given: ProfileOptions) -> RunDir:
    """Trains the short run; returns its folder."""
    import time

    from launcher.approach import approach_hosts
    from launcher.attempts import Manner
    from launcher.commands.launch import say
    from launcher.early_stops import early_stops
    from launcher.environment import read_env_file
    from launcher.launching import require_room, tell_warnings
    from launcher.profiling.short_run import chosen_ranks, profile_spec
    from launcher.resolve import read_and_resolve
    from launcher.run_folder import RUNS, make_named_folder, make_timed_folder, short_model_name

    resolution = read_and_resolve(spec_options(given, done="profiled"))
    resolved = resolution.resolved
    ranks = chosen_ranks(given.ranks, resolved.world_size)
    updates, warmup = given.updates or UPDATES, WARMUP if given.warmup is None else given.warmup
    short = profile_spec(resolved, warmup=warmup, updates=updates, ranks=ranks, memory=given.memory)
    say(f"spec: {resolution.origin}", err=True)
    variables = read_env_file(given.env_file) if given.env_file is not None else {}
    env_file = str(given.env_file.absolute()) if given.env_file is not None else ""
    manner = Manner(dry_run=False, exports=False, variables=variables, env_file=env_file, force=given.force, advice=AGAIN)
    with early_stops():
        parent = (given.output or Path.cwd() / RUNS).absolute()
        approach = approach_hosts(resolved, parent, variables=variables)
        tell_warnings(approach)
        require_room(resolved, manner, approach, folder=parent)
        label = f"{short_model_name(resolved.spec.model.model_name_or_path)}-profile"
        run_dir = make_named_folder(given.output) if given.output is not None else make_timed_folder(Path.cwd() / RUNS, label, time.localtime())
        _train(run_dir, resolution, short, manner, approach)
    return run_dir


def _train(run_dir: RunDir, resolution: Resolution, short: ResolvedSpec, manner: Manner, approach: Approach) -> None:
    """The short run; what it saves at its end is deleted."""
    import shutil

    from launcher.commands.launch import say
    from launcher.ds_config import render_ds_config
    from launcher.launching import NewRun, start_new
    from launcher.run_folder import shown

    try:
        start_new(run_dir, NewRun(spec_text=resolution.spec_text, ds_config=render_ds_config(short), resolved=short), manner, approach)
    finally:
        if run_dir.checkpoints.exists():
            shutil.rmtree(run_dir.checkpoints, ignore_errors=True)
            say(f"deleted: {shown(run_dir.checkpoints)}, which a profile has no use for", err=True)


def _tell(given: ProfileOptions, folder: Path, output: Path) -> None:
    """Sums up and prints."""
    import json

    from launcher.commands.launch import say
    from launcher.profiling.summarising import summarise
    from launcher.profiling.text import render_profile
    from launcher.run_folder import shown

    summary = summarise(folder, output, command_line=f"ftlaunch profile {shown(folder)}")
    if given.as_json:
        say(json.dumps(summary, indent=2, ensure_ascii=False))
        return
    say(render_profile(summary))
    say(f"\nresult: {shown(output / 'summary.json')}, {shown(output / 'summary.html')}; the traces open in https://ui.perfetto.dev")
