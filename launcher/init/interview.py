"""From flags, answers and what was found to the choices of a new spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ftcore.spec.errors import DataError, FtError, Problem, SpecError
from launcher.hostfile import read_hostfile
from launcher.init.data_files import DataFile, find_data, look_at
from launcher.init.machine import DEMO_DATA, DEMO_EVAL, DEMO_MODEL, Hostfile, accelerators, described_accelerators, find_hostfiles, find_models, half_type
from launcher.init.spec_text import METHODS, Choices
from launcher.references import check_data, check_model
from launcher.topology import is_local

Check = Callable[[str], Problem | None]
NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the command line says; None: not given."""

    model: str | None
    data: str | None
    evaluation: str | None
    method: str | None
    hosts: str | None


@dataclass(frozen=True, slots=True)
class _Found:
    """What this machine and folder offer."""

    gpus: list[dict[str, Any]]
    models: list[str]
    data: list[DataFile]
    hostfiles: list[Hostfile]


def decide(given: Given, root: Path, *, asks: bool) -> Choices:
    """The choices for a spec in the folder `root`, which is the current one.

    Asks on the terminal for what is not given, or with `asks` false takes what there is one of. Raises UsageError where there are several or none,
    SpecError or DataError for a flag that can't be taken, and click's Abort when the user has enough.
    """
    _require_right(given)
    found = _Found(accelerators(), find_models(root), find_data(root), find_hostfiles(root))
    if asks:
        click.echo(f"This machine: {described_accelerators(found.gpus)}.\n")
    else:
        _require_single(found, given)
    model = given.model or (_ask_model(found) if asks else _only_model(found, given))
    train = _data_file(given.data) if given.data else _ask_data(found, model) if asks else _only_data(found, model)
    held_out = [each for each in found.data if each.is_held_out and not each.needs and each.path != train.path]
    if given.evaluation is not None:
        evaluation = None if given.evaluation in ("", NONE) else _data_file(given.evaluation)
    elif train.path == DEMO_DATA:
        evaluation = _data_file(DEMO_EVAL)
    else:
        evaluation = _ask_evaluation(found, held_out, train) if asks else held_out[0] if len(held_out) == 1 else None
    method = given.method or ("full" if model == DEMO_MODEL else _ask_method() if asks else "lora")
    hosts = given.hosts if given.hosts is not None else _ask_hosts(found) if asks else ""
    # A machine without accelerators that starts ranks on others is most likely a cluster's login node.
    has_accelerators = bool(found.gpus) or (bool(hosts) and not all(map(is_local, read_hostfile(Path(hosts)))))
    precision = half_type(found.gpus) if has_accelerators else "fp32"
    return Choices(model=model, train=train, evaluation=evaluation, method=method, hosts=hosts, precision=precision)


def _require_right(given: Given) -> None:
    """Raises the error of every flag that can't be taken, all at once."""
    checks: list[tuple[str, str | None, Check]] = [
        *(("--model", given.model, check_model), ("--hosts", given.hosts, _check_hosts)),
        *(("--data", given.data, _check_rows), ("--eval", None if given.evaluation == NONE else given.evaluation, _check_rows)),
    ]
    problems = [Problem(what=problem.what, fix=problem.fix, where=flag) for flag, value, check in checks if value and (problem := check(value)) is not None]
    if problems:
        raise (DataError if all(problem.where in ("--data", "--eval") for problem in problems) else SpecError)(problems)


def _check_hosts(path: str) -> Problem | None:
    try:
        read_hostfile(Path(path))
    except FtError as error:
        return error.problems[0]
    return None


def _check_rows(path: str) -> Problem | None:
    problem = check_data(path)
    file = None if problem is not None else _data_file(path)
    if file is not None and file.needs:
        return Problem(what=f"{path} can't be trained on as it is: {file.needs}", fix="docs/data-formats.md says what a row may hold")
    return problem


def _data_file(path: str) -> DataFile:
    return DataFile(path=path, format="messages") if path.startswith("builtin:") else look_at(Path(path).expanduser(), path)


def _require_single(found: _Found, given: Given) -> None:
    """Raises UsageError with all that --yes can't decide: a model, data, or both."""
    wanting = []
    model = given.model or ""
    try:
        model = model or _only_model(found, given)
    except click.UsageError as error:
        wanting.append(error.message)
    try:
        _ = given.data or _only_data(found, model)
    except click.UsageError as error:
        wanting.append(error.message)
    if wanting:
        raise click.UsageError("\n".join(wanting))


def _only_model(found: _Found, given: Given) -> str:
    if len(found.models) == 1:
        return found.models[0]
    if found.models:
        raise click.UsageError(f"give --model: there are {', '.join(found.models)}")
    if given.data or any(not each.needs for each in found.data):
        raise click.UsageError("give --model: a hub id (owner/name), a folder or a .gguf file; none was found here or in the hub's cache")
    return DEMO_MODEL


def _only_data(found: _Found, model: str) -> DataFile:
    usable = [each for each in found.data if not each.needs and not each.is_held_out]
    if len(usable) == 1:
        return usable[0]
    if usable:
        raise click.UsageError(f"give --data: there are {', '.join(each.path for each in usable)}")
    if model == DEMO_MODEL:
        return _data_file(DEMO_DATA)
    seen = "".join(f"\n  {each.described()}" for each in found.data)
    raise click.UsageError(f"give --data: no file of rows was found in . and ./data{seen}")


def _ask_model(found: _Found) -> str:
    options = [*((name, name) for name in found.models), (DEMO_MODEL, f"{DEMO_MODEL}: made in code, to try things out")]
    return _choose("Which model? A number, a hub id (owner/name), a folder or a .gguf file.", options, check_model)


def _ask_data(found: _Found, model: str) -> DataFile:
    files = sorted(found.data, key=lambda each: (bool(each.needs), each.is_held_out))
    options = [*((each.path, each.described()) for each in files), (DEMO_DATA, f"{DEMO_DATA}: messages to turn into JSON, to try things out")]
    return _data_file(_choose("Which rows to train on? A number, a file, a folder or a hub id (owner/name).", options, _check_rows))


def _ask_evaluation(found: _Found, held_out: list[DataFile], train: DataFile) -> DataFile | None:
    others = [each for each in found.data if each.path != train.path and not each.needs and each not in held_out]
    options = [*((each.path, each.described()) for each in held_out), (NONE, "none"), *((each.path, each.described()) for each in others)]
    path = _choose("Which held-out rows to evaluate on? A number, a file, or none.", options, lambda text: None if text == NONE else _check_rows(text))
    return None if path == NONE else _data_file(path)


def _ask_method() -> str:
    options = [(name, f"{name}: {METHODS[name]}") for name in ("lora", "qlora", "full")]
    wrong = Problem(what="there are lora, qlora and full", fix="give one of them")
    return _choose("How to train it?", options, lambda text: None if text in METHODS else wrong)


def _ask_hosts(found: _Found) -> str:
    if not found.hostfiles:
        return ""
    here = f"this machine alone ({described_accelerators(found.gpus)})"
    options = [("", here), *((each.path, f"{each.path} ({each.note})") for each in found.hostfiles)]
    return _choose("On which hosts? A number, or a hostfile.", options, lambda text: _check_hosts(text) if text else None)


def _choose(title: str, options: list[tuple[str, str]], check: Check) -> str:
    """The value of the option whose number was typed, or what was typed instead; asked again until `check` has nothing against it."""
    click.echo(title)
    for number, (_, text) in enumerate(options, start=1):
        click.echo(f"  {number}. {text}")
    while True:
        typed = str(click.prompt("", default="1", prompt_suffix="> ")).strip()
        is_number = typed.isascii() and typed.isdigit()
        if is_number and not 0 < int(typed[:9]) <= len(options) and not Path(typed).exists():
            click.echo(f"  there is no {typed} in this list")
            continue
        value = options[int(typed) - 1][0] if is_number and 0 < int(typed[:9]) <= len(options) else typed
        problem = check(value)
        if problem is None:
            click.echo("")
            return value
        click.echo(f"  {problem.what}\n  {problem.fix}")
