"""`ftlaunch init`: write a first spec, from what this machine has and what the user says."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import click

from ftcore.spec.errors import SpecError
from launcher.commands.launch import say
from launcher.verb_options import FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions:
    """What the command line says."""

    model: str | None
    data: str | None
    evaluation: str | None
    method: str | None
    hosts: str | None
    output: Path
    yes: bool
    force: bool


class InitCommand(click.Command):
    """Calls `run` with the parsed options."""

    def invoke(self, ctx: click.Context) -> None:
        """Raises the FtError of what went wrong."""
        run(InitOptions(**ctx.params))


command = InitCommand(
    "init",
    short_help="Write a first spec: a few questions, or --yes.",
    help="Ask for a model, data, hosts and method, offer what is found here, and write a commented spec. Options answer a question before it is asked; "
    "with --yes nothing is asked.",
    params=[
        click.Option(["--model"], help="Hub id (owner/name), folder, or .gguf file."),
        click.Option(["--data"], help="Rows to train on: a JSONL, JSON, CSV or parquet file, a folder, a pattern or a hub id."),
        click.Option(["--eval", "evaluation"], help="File of held-out rows; `none` for none."),
        click.Option(["--method"], type=click.Choice(["full", "lora", "qlora"]), help="What is trained."),
        click.Option(["--hosts", "--hostfile", "-H"], help="A hostfile. Default: this machine."),
        click.Option(["--output", "-o"], type=FILE, default="ftlaunch.yaml", show_default=True, help="The file to write."),
        click.Option(["--yes", "-y"], is_flag=True, help="Ask nothing: take what there is one of, and defaults."),
        click.Option(["--force"], is_flag=True, help="Write over a file that is there."),
    ],
)


def run(given: InitOptions) -> None:
    """Writes the spec and says what comes next. Raises SpecError, DataError or UsageError; nothing is written then, nor after Ctrl-C."""
    from launcher.init.interview import Given, decide
    from launcher.init.spec_text import render_spec

    _require_free(given)
    asks = not given.yes
    if asks and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("there is no terminal to ask on: give --yes, with --model and --data where there are several or none")
    answers = Given(model=given.model, data=given.data, evaluation=given.evaluation, method=given.method, hosts=given.hosts)
    text = render_spec(decide(answers, Path(), asks=asks))
    _require_valid(text, given.output)
    _write(text, given)
    spec = "" if given.output == Path("ftlaunch.yaml") else f" --spec {given.output}"
    say(f"wrote {given.output}\n\nnext:")
    report = "" if given.output == Path("ftlaunch.yaml") else f" {given.output}"
    for line in (f"ftlaunch validate {given.output}", f"ftlaunch data report{report}", f"ftlaunch plan{spec}", f"ftlaunch{spec}"):
        say(f"  {line}")


def _require_free(given: InitOptions) -> None:
    if given.output.suffix not in (".yaml", ".yml"):
        raise click.UsageError(f"--output {given.output}: the file is YAML, so its name ends in .yaml")
    if given.output.exists() and not given.force:
        raise SpecError(f"{given.output} is there already", where="--output", fix="give --force to write over it, or another name with -o")


def _require_valid(text: str, output: Path) -> None:
    """Raises the SpecError of what `ftlaunch validate` would say of this text."""
    import tempfile

    from launcher.resolve import Options, check_spec

    with tempfile.NamedTemporaryFile("w", prefix="ftlaunch-init-", suffix=".yaml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        problems = check_spec(Options(spec_path=file.name))
        wrong = [replace(problem, file=str(output), line=None) if problem.file == file.name else problem for problem in problems]
    if wrong:
        raise SpecError(wrong)


def _write(text: str, given: InitOptions) -> None:
    """The whole file or none. Raises SpecError when it can't be written, or was made by somebody else meanwhile."""
    from ftcore.spec.run_dir import write_atomic

    try:
        if given.force:
            write_atomic(given.output, text)
            return
        given.output.parent.mkdir(parents=True, exist_ok=True)
        with given.output.open("x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except BaseException:
                given.output.unlink()
                raise
    except OSError as error:
        raise SpecError(f"can't write {given.output}: {error.strerror}", where="--output", fix="choose another place with -o") from error
