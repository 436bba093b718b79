"""`ftlaunch evaluate MODEL_OR_RUN`: score a model on the held-out sets of a spec; or compare two results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from launcher.verb_options import FILE, FOLDER, SpecGiven, approach, env_file_option, filter_options, hosts_option, set_option, zero_option


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions(SpecGiven):
    """What the command line says."""

    model: str | None
    env_file: Path | None
    update: int | None
    best: bool
    adapter: str
    against: Path | None
    compare: tuple[Path, Path] | None
    output: Path | None


class EvaluateCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        run(EvaluateOptions(**ctx.params))


command = EvaluateCommand(
    "evaluate",
    short_help="Score a model on held-out sets, or compare two results.",
    help=(
        "Score a run's newest checkpoint, a model, an adapter, or the spec's own model before training (`base`): the loss per token of every held-out set, "
        "and with evaluation.metrics the answers it generates. --compare sets two results side by side."
    ),
    params=[
        click.Argument(["model"], required=False, metavar="[MODEL_OR_RUN]"),
        click.Option(["--spec"], type=FILE, help="The spec with the held-out sets. Default: the run's own, else as for launch."),
        hosts_option(),
        zero_option("DeepSpeed ZeRO stage; 3 partitions the model."),
        set_option(),
        *filter_options(),
        env_file_option(),
        click.Option(["--update"], type=click.IntRange(1), metavar="N", help="The run's checkpoint after this update."),
        click.Option(["--best"], is_flag=True, help="The run's best checkpoint."),
        click.Option(["--adapter"], default="", metavar="NAME", help="Which adapter, of a run with several."),
        click.Option(["--against"], type=FOLDER, metavar="RESULT", help="An earlier result to compare with: the folder of an evaluation."),
        click.Option(["--compare"], type=FOLDER, nargs=2, metavar="BEFORE AFTER", help="Compare two results; evaluates nothing."),
        click.Option(["--output", "-o"], type=FOLDER, help="The evaluation's folder. Default: RUN/evaluations/TIME-CHECKPOINT or evaluations/TIME-MODEL."),
    ],
)


def run(given: EvaluateOptions) -> None:
    """Evaluates or compares. Raises the FtError of what went wrong."""
    if given.compare is not None:
        _compare(given, *given.compare)
        return
    if given.model is None:
        raise click.UsageError("name a model, a run's folder or `base`; or two results with --compare")
    _evaluate(given, given.model)


def _compare(given: EvaluateOptions, before: Path, after: Path) -> None:
    import sys

    from launcher.evaluating import run_comparison
    from launcher.progress import Progress
    from launcher.run_folder import make_named_folder

    names = ("model", "spec", "hosts", "zero", "sets", "update", "best", "adapter", "against")
    others = [name for name in names if getattr(given, name) not in (None, "", (), False)]
    if others:
        raise click.UsageError(f"--compare evaluates nothing, so {', '.join(others)} has no effect: leave it out")
    to = make_named_folder(given.output).path if given.output is not None else None
    run_comparison(before, after, to, Progress(sys.stdout))


def _evaluate(given: EvaluateOptions, model: str) -> None:
    from launcher.commands.launch import say
    from launcher.environment import read_env_file
    from launcher.evaluating import evaluation_folder, require_result, run_evaluation
    from launcher.evaluation_target import Asked, make_request
    from launcher.resolve import Options

    variables = read_env_file(given.env_file) if given.env_file is not None else {}
    options = Options(spec_path=given.spec, hosts=given.hosts, zero_stage=given.zero, sets=given.sets, include=given.include, exclude=given.exclude)
    against = require_result(given.against) if given.against is not None else ""
    request, resolution = make_request(Asked(name=model, update=given.update, best=given.best, adapter=given.adapter, against=against), options)
    say(f"spec: {resolution.origin}")
    found = approach(request.resolved, (given.output or Path(request.path if request.kind == "run" else ".")).absolute(), variables)
    run_evaluation(evaluation_folder(request, given.output), request, variables, found)
