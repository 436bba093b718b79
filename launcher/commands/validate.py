"""`ftlaunch validate [SPEC...]`: every mistake of specs and their hostfiles, without starting anything."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ftcore.spec.errors import FtError, Problem, SpecError
from launcher.verb_options import FILE, NamedPath, filter_options, set_option, zero_option

if TYPE_CHECKING:
    from launcher.spec_source import Options

SUFFIXES = (".yaml", ".yml", ".json")
"""Of the files that count as specs when a folder is given."""
_OF_DEEPSPEED = ": a DeepSpeed JSON; a spec uses it with zero.config"


class ValidateCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises an FtError when a spec has mistakes."""
        from launcher.spec_source import Options

        given = ctx.params
        options = Options(hosts=given["hosts"], zero_stage=given["zero"], sets=given["sets"], include=given["include"], exclude=given["exclude"])
        run(given["specs"], options, as_json=given["as_json"])


command = ValidateCommand(
    "validate",
    short_help="Check specs and hostfiles; starts nothing.",
    help="Check each SPEC and the hostfile it names, and report every mistake at once. SPEC may be a folder, for the specs in it, or `-` for stdin. "
    "Without SPEC: the one that a bare ftlaunch would use.",
    params=[
        click.Argument(["specs"], nargs=-1, type=NamedPath(path_type=Path, allow_dash=True), metavar="[SPEC]..."),
        click.Option(["--hosts", "--hostfile", "-H"], type=FILE, help="A hostfile to use in place of the spec's."),
        zero_option(),
        set_option(),
        *filter_options(),
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON array: file, ok, problems and warnings of each spec."),
    ],
)


def run(specs: tuple[Path, ...], options: Options, *, as_json: bool) -> None:
    """Prints a line for each spec that is right (or the JSON). Raises SpecError, or ClusterError when only hostfiles are wrong, with every mistake."""
    results: list[dict[str, object]] = []
    failures: list[FtError] = []
    for spec in _files(specs) if specs else [None]:
        name, failure, warnings = _check(dataclasses.replace(options, spec_path=spec))
        problems: tuple[Problem, ...] = failure.problems if failure is not None else ()
        found = [dataclasses.asdict(problem) for problem in problems]
        results.append({"file": name.removesuffix(_OF_DEEPSPEED), "ok": failure is None, "problems": found, "warnings": list(warnings)})
        if failure is not None:
            failures.append(failure)
        elif not as_json:
            click.echo(f"OK {name}")
        for warning in () if as_json else warnings:
            click.echo(f"warning: {warning}", err=True)
    if as_json:
        click.echo(json.dumps(results, indent=2, ensure_ascii=False))
    if failures:
        kind = SpecError if any(isinstance(failure, SpecError) for failure in failures) else type(failures[0])
        if as_json:
            raise click.exceptions.Exit(kind.exit_status)
        raise kind([problem for failure in failures for problem in failure.problems])


def _files(specs: tuple[Path, ...]) -> Iterator[Path]:
    """The specs, a folder's in its place. A folder without any stays, to be refused as a spec that can't be read."""
    for spec in specs:
        inside: list[Path] = []
        # What is no folder, or can't be looked into, is refused where it is read.
        with contextlib.suppress(OSError):
            inside = sorted(path for path in spec.iterdir() if path.suffix in SUFFIXES and path.is_file())
        yield from inside or [spec]


def _check(options: Options) -> tuple[str, FtError | None, tuple[str, ...]]:
    """The spec's name in the report, what is wrong with it, and what a user should know of it. A DeepSpeed JSON is checked as zero.config of a spec."""
    from launcher.ds_json.alone import check_alone
    from launcher.resolve import read_and_resolve
    from launcher.spec_source import STDIN, STDIN_LABEL

    alone = check_alone(options.spec_path, options) if isinstance(options.spec_path, Path) else None
    if alone is not None:
        return f"{options.spec_path}{_OF_DEEPSPEED}", SpecError(alone.problems) if alone.problems else None, alone.warnings
    try:
        resolution = read_and_resolve(options)
    except FtError as error:
        return STDIN_LABEL if str(options.spec_path) == STDIN else str(options.spec_path or "the default spec"), error, ()
    return resolution.origin, None, resolution.warnings
