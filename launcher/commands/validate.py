"""`ftlaunch validate [SPEC...]`: every mistake of specs and their hostfiles, without starting anything."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from ftcore.spec.errors import FtError, Problem, SpecError


class ValidateCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises an FtError when a spec has mistakes."""
        run(ctx.params["specs"], hosts=ctx.params["hosts"], as_json=ctx.params["as_json"])


command = ValidateCommand(
    "validate",
    short_help="Check specs and hostfiles; starts nothing.",
    help="Check each SPEC and the hostfile it names, and report every mistake at once. Without SPEC: the one that a bare ftlaunch would use.",
    params=[
        click.Argument(["specs"], nargs=-1, type=click.Path(path_type=Path), metavar="[SPEC]..."),
        click.Option(["--hosts", "--hostfile", "-H"], type=click.Path(path_type=Path), help="A hostfile to use in place of the spec's."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON array: file, ok and problems of each spec."),
    ],
)


def run(specs: tuple[Path, ...], *, hosts: Path | None, as_json: bool) -> None:
    """Prints a line for each spec that is right (or the JSON). Raises SpecError, or ClusterError when only hostfiles are wrong, with every mistake."""
    results: list[dict[str, object]] = []
    failures: list[FtError] = []
    for spec in specs or (None,):
        name, failure = _check(spec, hosts)
        problems: tuple[Problem, ...] = failure.problems if failure is not None else ()
        results.append({"file": name, "ok": failure is None, "problems": [dataclasses.asdict(problem) for problem in problems]})
        if failure is not None:
            failures.append(failure)
        elif not as_json:
            click.echo(f"OK {name}")
    if as_json:
        click.echo(json.dumps(results, indent=2, ensure_ascii=False))
    if failures:
        kind = SpecError if any(isinstance(failure, SpecError) for failure in failures) else type(failures[0])
        if as_json:
            raise click.exceptions.Exit(kind.exit_status)
        raise kind([problem for failure in failures for problem in failure.problems])


def _check(spec: Path | None, hosts: Path | None) -> tuple[str, FtError | None]:
    """The spec's name in the report, and what is wrong with it."""
    from launcher.resolve import Options, read_and_resolve

    try:
        resolution = read_and_resolve(Options(spec_path=spec, hosts=hosts))
    except FtError as error:
        return str(spec or "the default spec"), error
    return resolution.origin, None
