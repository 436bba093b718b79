"""`ftlaunch pilot [SPEC]`: a few updates for real, set against the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from launcher.verb_options import FILE, RunGiven, arguments, run_options, spec_options

if TYPE_CHECKING:
    from ftcore.spec.resolved import ResolvedSpec
    from ftcore.spec.run_dir import RunDir
    from launcher.approach import Approach
    from launcher.short_runs import ShortRun


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotOptions(RunGiven):
    """What the command line says."""

    updates: int


class PilotCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        run(PilotOptions(**ctx.params))


command = PilotCommand(
    "pilot",
    short_help="A few updates for real, set against the plan.",
    help="Train a few updates of the run that SPEC describes, in a folder of their own, and set memory and speed against what `ftlaunch plan` expects. "
    "Prints a table and writes pilot.json; nothing is evaluated or exported. Status 7 when the run would not fit.",
    params=[
        arguments("[SPEC] [KEY=VALUE]..."),
        click.Option(["--spec"], type=FILE, help="The spec, as for launch; the same as SPEC."),
        click.Option(["--updates"], type=click.IntRange(3, 1000), default=6, show_default=True, help="Updates; the first two are a warm-up."),
        *run_options("the ranks", folder="The pilot's folder. Default: runs/TIME-MODEL-pilot."),
    ],
)


def run(given: PilotOptions) -> None:
    """Runs the pilot. Raises the FtError of what went wrong, and DoesNotFitError when the whole run would not fit."""
    from launcher.commands.launch import say
    from launcher.memory.pilot import pilot_spec
    from launcher.resolve import read_and_resolve
    from launcher.short_runs import ShortRun

    resolution = read_and_resolve(spec_options(given, done="piloted"))
    short = pilot_spec(resolution.resolved, given.updates)
    say(f"spec: {resolution.origin}")
    wanted = ShortRun(verb="pilot", resolution=resolution, short=short, output=given.output, env_file=given.env_file, force=given.force)
    run_dir, approach = train(wanted)
    _report(resolution.resolved, run_dir, approach)


def train(wanted: ShortRun) -> tuple[RunDir, Approach]:
    """Trains the pilot's own run. Raises DoesNotFitError when memory ran out."""
    from ftcore.spec.errors import DoesNotFitError, TrainingError
    from launcher.failure import RunFailedError
    from launcher.short_runs import train_short

    try:
        return train_short(wanted)
    except RunFailedError as failure:
        if failure.exit_status == TrainingError.exit_status and "out of memory" in failure.brief:
            fix = "ftlaunch plan --recommend lists what fits"
            raise DoesNotFitError(f"memory ran out in the pilot\n{failure.brief}", where="pilot", fix=fix) from failure
        raise


def _report(resolved: ResolvedSpec, run_dir: RunDir, approach: Approach) -> None:
    """Sets the pilot beside the plan: prints it, writes pilot.json. Raises DoesNotFitError when the whole run would not fit."""
    import json

    from ftcore.spec.errors import DoesNotFitError, FtError
    from launcher.commands.launch import say
    from launcher.memory.capacity import capacity_of
    from launcher.memory.fit import gib
    from launcher.memory.launch_fit import shape_at_hand
    from launcher.memory.pilot import compare, read_measured
    from launcher.memory.pilot_text import pilot_facts, render_pilot
    from launcher.run_folder import shown, write_files

    measured = read_measured(run_dir, resolved.world_size)
    try:
        result = compare(resolved, shape_at_hand(resolved.spec.model), capacity_of(resolved, facts=approach.facts), measured)
    except FtError as error:
        result = None
        say(f"warning: {error.problems[0].what}", err=True)
    if result is None:
        speed = f"{measured.tokens_per_s:,.0f} tokens/s, peak memory of a rank {gib(max(measured.peak_bytes))}"
        say(f"{speed}; what was expected is not known: the model or the accelerator can't be planned for")
        return
    path = run_dir.path / "pilot.json"
    write_files({path: json.dumps(pilot_facts(result), indent=2) + "\n"})
    say(render_pilot(result))
    say(f"result: {shown(path)}")
    if result.fits is False:
        what = f"a rank takes {gib(result.most_bytes)} by the pilot, and can have {gib(result.room_bytes or 0)}"
        raise DoesNotFitError(what, where="pilot", fix="ftlaunch plan --recommend lists what fits")
