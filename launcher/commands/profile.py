"""`ftlaunch profile [SPEC | RUN]`: where the time of a few updates goes."""

from __future__ import annotations

from dataclasses import dataclass
from os.path import isdir
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.verb_options import FILE, RunGiven, arguments, run_options, spec_options

if TYPE_CHECKING:
    from ftcore.spec.run_dir import RunDir

UPDATES, WARMUP = 3, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions(RunGiven):
    """What the command line says."""

    updates: int | None
    warmup: int | None
    ranks: str
    memory: bool
    as_json: bool

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
        arguments("[SPEC | RUN] [KEY=VALUE]..."),
        click.Option(["--spec"], type=FILE, help="The spec, as for launch; the same as SPEC."),
        click.Option(["--updates"], type=click.IntRange(1, 1000), help=f"Updates that are recorded. Default: {UPDATES}."),
        click.Option(["--warmup"], type=click.IntRange(0, 100_000), help=f"Updates before them. Default: {WARMUP}."),
        click.Option(["--ranks"], default="", metavar="RANKS", help="Ranks that record: all, or such as 0,4-7. Default: all, at most 16 of them."),
        click.Option(["--memory"], is_flag=True, help="Record allocations as well."),
        *run_options("the ranks", folder="The folder of the profile. Default: runs/TIME-MODEL-profile; for a RUN its profile/."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print summary.json instead of tables."),
    ],
)


def run(given: ProfileOptions) -> None:
    """Profiles a run, or sums up traces that are there. Raises the FtError of what went wrong."""
    existing = [Path(text) for text in given.arguments if isdir(text)]
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
    from launcher.commands.launch import say
    from launcher.profiling.short_run import chosen_ranks, profile_spec
    from launcher.resolve import read_and_resolve
    from launcher.short_runs import ShortRun, train_short

    resolution = read_and_resolve(spec_options(given, done="profiled"))
    ranks = chosen_ranks(given.ranks, resolution.resolved.world_size)
    updates, warmup = given.updates or UPDATES, WARMUP if given.warmup is None else given.warmup
    short = profile_spec(resolution.resolved, warmup=warmup, updates=updates, ranks=ranks, memory=given.memory)
    say(f"spec: {resolution.origin}", err=True)
    run_dir, _ = train_short(ShortRun(verb="profile", resolution=resolution, short=short, output=given.output, env_file=given.env_file, force=given.force))
    return run_dir


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
