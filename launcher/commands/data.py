"""`ftlaunch data report|show|prepare|gc`: the rows that a spec trains on, looked at before any accelerator is taken."""

from __future__ import annotations

import contextlib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launcher.verb_options import FILE, FOLDER, arguments, set_option, spec_options

if TYPE_CHECKING:
    from ftcore.spec.errors import DataError
    from launcher.resolve import Resolution

REPORT_FOLDER = "data_report"
"""Folder for the report's files, in the current one."""
_COMMAND_LINE = "launcher.commands.data.command_line"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecOptions:
    """What the command line says about the spec."""

    arguments: tuple[str, ...]
    spec: Path | None
    sets: tuple[str, ...]
    zero: None = None
    """The ZeRO stage changes nothing about data."""


class DataCommand(click.Command):
    """A verb that remembers how it was called."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does."""
        ctx.meta[_COMMAND_LINE] = shlex.join(["ftlaunch", "data", str(self.name), *args])
        return super().parse_args(ctx, args)


class ReportCommand(DataCommand):
    """Reports."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises DataError when training would refuse the data, and the FtError of anything else that is wrong."""
        given = ctx.params
        names = ("html", "as_json", "output", "samples", "listed")
        report(_resolution(given, done="reported on"), **{name: given[name] for name in names})


class ShowCommand(DataCommand):
    """Shows one row."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what is wrong, but for the row itself."""
        given = ctx.params
        names = [text for text in given["sets"] if "=" not in text]
        if len(names) > 1:
            raise click.UsageError(f"one set is looked at at a time, {len(names)} were given: {', '.join(names)}")
        overrides = {**given, "sets": tuple(text for text in given["sets"] if "=" in text)}
        show(_resolution(overrides, done="looked at"), row=given["row"], set_name="".join(names), as_json=given["as_json"])


class PrepareCommand(DataCommand):
    """Prepares."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what is wrong."""
        prepare(_resolution(ctx.params, done="prepared"), as_json=ctx.params["as_json"])


class GcCommand(DataCommand):
    """Lists the cache, or frees room in it."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what is wrong."""
        given = ctx.params
        names = ("older_than", "everything", "keep", "dry_run", "as_json")
        collect(**{name: given[name] for name in names})


_ARGUMENTS = arguments("[SPEC] [KEY=VALUE]...")
_SPEC = click.Option(["--spec"], type=FILE, help="The spec, as for launch; the same as SPEC.")
_JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object.")
_WITHOUT = " Without SPEC: the one that a bare ftlaunch would use. KEY=VALUE arguments override values of the spec."

command = click.Group(
    "data",
    short_help="Look at the rows of a spec, prepare them, or free the cache's room.",
    help="The rows that a spec trains on and is evaluated on: what they come to, one of them token by token, and the cache of prepared samples.",
    commands=[
        ReportCommand(
            "report",
            short_help="What became of every row, lengths, masks, duplicates, rendered samples.",
            help="Per set: rows, formats, lengths, what is cut or dropped and why, the supervised share, duplicates and rendered samples with their "
            "supervised tokens in colour. Status 4 when training would refuse the data." + _WITHOUT,
            params=[
                _ARGUMENTS,
                click.Option(["--html"], is_flag=True, help="Write data_report.html, too: one page without links."),
                _JSON,
                click.Option(["--output", "-o"], type=FOLDER, help=f"Folder for the report's files. Default: {REPORT_FOLDER} in the current folder."),
                click.Option(["--samples"], type=click.IntRange(0, 1000), default=3, show_default=True, help="Rendered samples a set."),
                click.Option(["--rows", "listed"], type=click.IntRange(1, 10_000), default=10, show_default=True, help="Rows listed of each kind."),
                _SPEC,
                set_option(),
            ],
        ),
        ShowCommand(
            "show",
            short_help="One row: text, ids, mask, positions.",
            help="One row of a set, by the number that messages give it: as it stands in the file, as text, and token by token." + _WITHOUT,
            params=[
                _ARGUMENTS,
                click.Option(["--row"], type=click.IntRange(1), required=True, metavar="N", help="The row's number, from 1 over the whole set."),
                _JSON,
                _SPEC,
                click.Option(
                    ["--set", "sets"],
                    metavar="NAME|KEY=VALUE",
                    multiple=True,
                    help="The set of the row: train, eval or a name (default: the first that is trained on). Or override a value of the spec.",
                ),
            ],
        ),
        PrepareCommand(
            "prepare",
            short_help="Build the cache of prepared samples.",
            help="Read, render and tokenise every set into the cache that launch uses. launch does it by itself when it is missing." + _WITHOUT,
            params=[_ARGUMENTS, _JSON, _SPEC, set_option()],
        ),
        GcCommand(
            "gc",
            short_help="List or clear away prepared samples.",
            help="List the prepared samples in the cache; with --older-than or --all, clear them away. What a run reads or a preparation makes stays.",
            params=[
                click.Option(["--older-than"], default="", metavar="TIME", help="Clear away what was not used for so long: 30d, 12h."),
                click.Option(["--all", "everything"], is_flag=True, help="Clear away all that is not in use."),
                click.Option(["--keep"], type=FOLDER, multiple=True, metavar="RUN", help="But not the data of this run. May be given again."),
                click.Option(["--dry-run"], is_flag=True, help="Clear nothing away, and say what would go."),
                _JSON,
            ],
        ),
    ],
)


def report(resolution: Resolution, *, html: bool, as_json: bool, output: Path | None, samples: int, listed: int) -> None:
    """Writes the report's files and prints it. Raises DataError when training would refuse the data."""
    import shutil
    import sys

    from ftcore.spec.data_report import DataReportDir, DataRequest
    from launcher.data_verbs.asking import ask
    from launcher.data_verbs.paint import Paint, takes_colours
    from launcher.data_verbs.report_text import render_report
    from launcher.run_folder import shown, write_files

    paths = DataReportDir(_report_folder(output or Path(REPORT_FOLDER)))
    request = DataRequest(origin=resolution.origin, samples=samples, listed=listed, output=str(paths.path), html=html)
    facts = ask("report", resolution.resolved, request, command_line=_command_line())
    width = shutil.get_terminal_size().columns
    write_files({paths.text: render_report(facts, Paint(coloured=False), width=100) + "\n"})
    if as_json:
        _say(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        _say(render_report(facts, Paint(coloured=takes_colours(sys.stdout)), width=width))
        written = [paths.json, paths.text, *([paths.html] if html else [])]
        _say("\nreport: " + ", ".join(shown(path) for path in written))
    if facts["refuses"]:
        raise _refusal(facts, shown(paths.text))


def _refusal(facts: dict[str, Any], report_file: str) -> DataError:
    """Why training would refuse the data of a report, in short."""
    from ftcore.spec.errors import DataError
    from launcher.data_verbs.report_text import counted

    refused = {name: each for name, each in facts["sets"].items() if each["refusals"]}
    first = [problem for each in (facts, *refused.values()) for problem in each["refusals"]]
    bad = [f"{counted(each['bad_rows'], 'bad row')} in {name}" for name, each in refused.items() if each["bad_rows"] and facts["on_bad_row"] == "error"]
    what = "; ".join(bad) or first[0]["what"]
    # A mistake that many rows share has a fix of its own.
    shared = bad and len(first) > 1 and first[0]["what"] == first[1]["what"] and first[0]["fix"]
    fix = f"{shared}; or set data.on_bad_row: drop" if shared else "mend the rows, or set data.on_bad_row: drop" if bad else first[0]["fix"]
    where = ", ".join(each["key"] for each in refused.values()) or "data"
    return DataError(f"training would refuse this data: {what}", where=where, fix=f"{fix}; see {report_file}")


def _report_folder(path: Path) -> Path:
    """The folder for a report's files, made before anything is computed. Raises CheckpointError when it can't be written to."""
    import tempfile

    from ftcore.spec.errors import CheckpointError

    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path.absolute()
    except OSError as error:
        raise CheckpointError(f"can't write into {path}: {error.strerror}", where="--output", fix="choose a folder that can be written to with -o") from error


def show(resolution: Resolution, *, row: int, set_name: str, as_json: bool) -> None:
    """Prints one row. Raises SpecError for a set that the spec hasn't, DataError for a row that isn't there."""
    import sys

    from ftcore.spec.data_report import DataRequest
    from launcher.data_verbs.asking import ask
    from launcher.data_verbs.paint import Paint, takes_colours
    from launcher.data_verbs.row_text import render_row

    request = DataRequest(origin=resolution.origin, row=row, set_name=set_name)
    found = ask("show", resolution.resolved, request, command_line=_command_line())
    _say(json.dumps(found, indent=2, ensure_ascii=False) if as_json else render_row(found, Paint(coloured=takes_colours(sys.stdout))))


def prepare(resolution: Resolution, *, as_json: bool) -> None:
    """Builds the cache and prints where it lies."""
    from ftcore.spec.data_report import DataRequest
    from launcher.data_verbs.asking import ask
    from launcher.data_verbs.prepared_text import render_prepared

    found = ask("prepare", resolution.resolved, DataRequest(origin=resolution.origin), command_line=_command_line())
    _say(json.dumps(found, indent=2, ensure_ascii=False) if as_json else render_prepared(found))


def collect(*, older_than: str, everything: bool, keep: tuple[Path, ...], dry_run: bool, as_json: bool) -> None:
    """Lists or clears away prepared samples. Raises UsageError for options that don't go together, CheckpointError for a run to keep that is none."""
    from ftcore.spec.data_report import DataRequest
    from launcher.data_verbs.asking import ask
    from launcher.data_verbs.cache_text import render_collected
    from launcher.resolve import cache_folder

    if older_than and everything:
        raise click.UsageError("--older-than and --all are both given: --all takes every age")
    lists_only = not older_than and not everything
    if lists_only and (keep or dry_run):
        raise click.UsageError("without --older-than or --all nothing is cleared away, so --keep and --dry-run have no effect")
    kept = tuple(str(run.absolute()) for run in keep)
    days = _days(older_than) if older_than else None
    request = DataRequest(origin="", cache=cache_folder(), older_than_days=days, everything=everything, keep=kept, dry_run=dry_run)
    found = ask("gc", None, request, command_line=_command_line())
    _say(json.dumps(found, indent=2, ensure_ascii=False) if as_json else render_collected(found, cache_folder(), lists_only=lists_only))


def _days(text: str) -> float:
    """A duration in days. Raises UsageError for one without a unit: it would be taken for days as well as for seconds."""
    from ftcore.spec.quantities import QuantityError, parse_duration

    if text.isdecimal():
        raise click.UsageError(f"--older-than {text} has no unit: write {text}d or {text}h")
    try:
        return parse_duration(text) / 86_400
    except QuantityError as error:
        raise click.UsageError(f"--older-than: {error.reason}; {error.fix}") from error


def _resolution(params: dict[str, Any], *, done: str) -> Resolution:
    """The spec that a verb is about; tells on stderr what is odd about it. Raises SpecError with every mistake but those of hosts, which no rows need."""
    from launcher.launching import tell
    from launcher.resolve import read_and_resolve

    given = SpecOptions(arguments=params["arguments"], spec=params["spec"], sets=params["sets"])
    resolution = read_and_resolve(spec_options(given, done=done), with_hosts=False)
    tell(resolution.warnings)
    return resolution


def _command_line() -> str:
    text: str = click.get_current_context().meta[_COMMAND_LINE]
    return text


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        click.echo(text)
