"""The command `ftlaunch`. The one place that prints an FtError and sets the exit status."""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ftcore.spec.errors import INTERRUPT_STATUS_BASE, FtError

VERBS = ("launch", "validate", "export")
"""Each is a module of launcher.commands, imported when it is called."""

OUR_BUG = 1
USAGE = 2

_GROUP_OPTIONS = ("--help", "-h", "--version")


class Verbs(click.Group):
    """The verbs, and `launch` where none is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A command line that begins with an option or with KEY=VALUE, or is empty, launches."""
        names_verb = bool(args) and not args[0].startswith("-") and "=" not in args[0]
        asks_group = bool(args) and args[0] in _GROUP_OPTIONS
        return super().parse_args(ctx, args if names_verb or asks_group else ["launch", *args])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the verb's module; None for an unknown one."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"launcher.commands.{cmd_name}").command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises UsageError for an unknown verb, with the nearest one."""
        command = self.get_command(ctx, args[0])
        if command is not None:
            return args[0], command, args[1:]
        nearest = difflib.get_close_matches(args[0], VERBS, n=1)
        if nearest:
            hint = f"did you mean `ftlaunch {nearest[0]}`?"
        elif Path(args[0]).is_file():
            hint = f"to launch a spec, write `ftlaunch --spec {args[0]}`"
        else:
            hint = f"there are {', '.join(VERBS)}"
        raise click.UsageError(f"no verb '{args[0]}': {hint}", ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs, and the options of `launch`, which need no verb."""
        launch = self.get_command(ctx, "launch")
        options = [each for each in (launch.params if launch else []) + self.get_params(ctx) if isinstance(each, click.Option)]
        with formatter.section("Options"):
            formatter.write_dl([record for option in options if (record := option.get_help_record(ctx)) is not None])
        self.format_commands(ctx, formatter)


def _print_version(context: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if not is_asked:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        click.echo(f"ftlaunch {version('ftlaunch')}")
    except PackageNotFoundError:
        click.echo("ftlaunch, not installed as a package")
    context.exit()


cli = Verbs(
    "ftlaunch",
    subcommand_metavar="[OPTIONS] [KEY=VALUE]... | VERB ...",
    options_metavar="",
    help="Fine-tune language models through DeepSpeed, on one machine or many. Without a verb: launch a run.",
    epilog="Exit status: 0 done, 1 our bug, 2 usage or spec, 3 cluster, 4 data, 5 checkpoint, 6 training, 7 does not fit, 128+N killed by signal N.",
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda token: token.replace("_", "-"),
        "max_content_width": 110,
    },
    params=[click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version and exit.")],
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line; returns the exit status."""
    status = _run(list(sys.argv[1:] if arguments is None else arguments))
    try:
        sys.stdout.flush()
    except OSError:
        # The reader went away; Python's own flush at exit must not turn that into another status.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _run(arguments: list[str]) -> int:
    try:
        result = cli.main(arguments, prog_name="ftlaunch", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as asked:
        return asked.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except FtError as error:
        print_error(error)
        return error.exit_status
    except (KeyboardInterrupt, click.Abort):
        click.echo("stopped by SIGINT", err=True)
        return INTERRUPT_STATUS_BASE + signal.SIGINT
    except SystemExit:
        # Click's answer to a reader of stdout that went away.
        return INTERRUPT_STATUS_BASE + signal.SIGPIPE
    except Exception as error:  # noqa: BLE001  the last resort: whatever it is, the user gets a line and a status
        click.echo(f"ftlaunch: this is our bug: {type(error).__name__}: {error}\n    its traceback, for a report: {_save_traceback()}", err=True)
        return OUR_BUG


def print_error(error: FtError) -> None:
    """The problems of an error on stderr, with their number when there are several."""
    count = len(error.problems)
    click.echo(f"ftlaunch: {count} problems" if count > 1 else f"ftlaunch: {error}", err=True)
    for problem in error.problems if count > 1 else ():
        click.echo(str(problem), err=True)


def _save_traceback() -> str:
    """The name of a file that holds the current traceback."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="ftlaunch-bug-", suffix=".log", delete=False, encoding="utf-8") as file:
        traceback.print_exc(file=file)
    return file.name


if __name__ == "__main__":
    sys.exit(main())
