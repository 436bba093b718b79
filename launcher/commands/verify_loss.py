"""`ftlaunch verify-loss SPEC`: train a few updates split in several ways, and say whether they agree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from launcher.verb_options import FILE, FOLDER, SpecGiven, approach, env_file_option, filter_options, hosts_option, set_option, zero_option


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions(SpecGiven):
    """What the command line says."""

    spec_option: Path | None
    env_file: Path | None
    updates: int
    ranks: str
    quick: bool
    all_splits: bool
    json_file: Path | None
    output: Path | None


class VerifyCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        run(VerifyOptions(**ctx.params))


command = VerifyCommand(
    "verify-loss",
    short_help="Check that your own training does not depend on how it is split.",
    help=(
        "Train a few updates of a spec, with its own model and data, on several numbers of ranks, in several ZeRO stages, "
        "with other micro-steps, padded, and resumed; compare losses, gradient norms, samples and parameters. Status 0: they agree, 6: they don't."
    ),
    params=[
        click.Argument(["spec"], required=False, type=FILE, metavar="[SPEC]"),
        click.Option(["--spec", "spec_option"], type=FILE, help="The spec, in place of the argument. Default: as for launch."),
        click.Option(["--updates"], type=click.IntRange(2, 1000), default=4, show_default=True, help="Updates of each run."),
        click.Option(["--quick"], is_flag=True, help="Three splits beside the reference."),
        click.Option(["--all", "all_splits"], is_flag=True, help="Every number of ranks with every stage, two budgets and both layouts."),
        click.Option(["--ranks"], default="", metavar="N,N...", help="Numbers of ranks; the smallest is the reference's. Default: 1, 2 and all slots."),
        hosts_option(),
        zero_option("The spec's own DeepSpeed ZeRO stage."),
        set_option(),
        *filter_options(),
        env_file_option(),
        click.Option(["--json", "json_file"], type=FILE, metavar="FILE", help="A copy of the result, verify.json."),
        click.Option(["--output", "-o"], type=FOLDER, help="The check's folder. Default: verifications/TIME-MODEL."),
    ],
)


def run(given: VerifyOptions) -> None:
    """Verifies. Raises the FtError of what went wrong, a TrainingError when splits differ."""
    from launcher.commands.launch import say
    from launcher.environment import read_env_file
    from launcher.resolve import Options, read_and_resolve
    from launcher.verify_loss import check_folder, run_check
    from launcher.verify_loss_request import Check, make_request

    if given.quick and given.all_splits:
        raise click.UsageError("--quick and --all are two scopes: give one of them")
    if given.spec is not None and given.spec_option is not None:
        raise click.UsageError("the spec is given twice, as an argument and by --spec")
    variables = read_env_file(given.env_file) if given.env_file is not None else {}
    spec_path = given.spec or given.spec_option
    options = Options(spec_path=spec_path, hosts=given.hosts, zero_stage=given.zero, sets=given.sets, include=given.include, exclude=given.exclude)
    resolution = read_and_resolve(options)
    say(f"spec: {resolution.origin}")
    scope = "quick" if given.quick else "all" if given.all_splits else "default"
    check = Check(options=options, resolved=resolution.resolved, updates=given.updates, scope=scope, ranks=parse_ranks(given.ranks))
    found = approach(check.resolved, (given.output or Path.cwd()).absolute(), variables)
    request = make_request(check)
    folder = check_folder(check.resolved.spec.model.model_name_or_path, given.output)
    run_check(folder, check, request, variables=variables, approach=found, json_file=given.json_file)


def parse_ranks(text: str) -> tuple[int, ...]:
    """The numbers of `--ranks`, ascending. Raises UsageError for anything else."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise click.UsageError(f"--ranks takes numbers from 1, with commas between them; '{text}' is something else")
    return tuple(sorted({int(part) for part in parts}))
