"""The command line's group: the verbs, the options that need no verb, and their help. Imported by `launcher.cli.main` alone."""

from __future__ import annotations

import difflib
import importlib
from pathlib import Path

import click

VERBS = (
    "init",
    "launch",
    "validate",
    "plan",
    "pilot",
    "cost",
    "profile",
    "doctor",
    "submit",
    "status",
    "watch",
    "logs",
    "cancel",
    "verify-loss",
    "scale",
    "evaluate",
    "export",
    "checkpoints",
    "data",
    "report",
    "diff",
    "config-schema",
)
"""Each is a module of launcher.commands, imported when it is called."""

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
        command: click.Command = importlib.import_module(f"launcher.commands.{cmd_name.replace('-', '_')}").command
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
    epilog="Exit status: 0 done, 1 our bug, 2 usage or spec, 3 cluster, 4 data, 5 checkpoint, 6 training, 7 does not fit, 75 preempted, 128+N signal N.",
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda token: token.replace("_", "-"),
        "max_content_width": 110,
    },
    params=[click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version and exit.")],
)
