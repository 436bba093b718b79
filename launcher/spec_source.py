"""What the user asked for, put together from the spec file and the command line, with the place of every value.

Precedence, lowest first: the defaults of ftcore.spec.sections, the spec file, then the options (--hosts, --zero, --launcher, ..., --set), by which each
key may be given once.
Of keys that stand for the same thing (num_train_epochs and max_steps, ...) one given on the command line displaces the other one in the file.
"""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ftcore.spec.document import Document, KeyPath, dotted, read_document, unreadable
from ftcore.spec.errors import Problem
from ftcore.spec.variables import Variables
from launcher.merge import Merge, Place
from launcher.spec_values import SECRET_FIX, read_quantities, secret_lines
from launcher.variable_names import is_secret

__all__ = ["STDIN", "STDIN_LABEL", "Draft", "Options", "Place", "put_over", "read_draft"]

SPEC_NAME = "ftlaunch.yaml"
STDIN, STDIN_LABEL = "-", "<stdin>"
"""What stands for standard input on a command line, and what it is called in messages."""
DEFAULT_SPEC = Path(__file__).with_name("default.yaml")
MOST_BYTES = 2**22
"""A larger file is no spec; some files, such as devices, have no end."""
DEFAULT_LABEL = "launcher/default.yaml"
DEFAULT_ORIGIN = f"the embedded default (no spec given, no ./{SPEC_NAME})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says about the spec."""

    spec_path: str | Path | None = None
    """The spec file, `-` for standard input; None: ./ftlaunch.yaml if it is there, else the embedded default."""
    hosts: str | Path | None = None
    """--hosts: a hostfile."""
    zero_stage: int | None = None
    """--zero: the ZeRO stage."""
    sets: tuple[str, ...] = ()
    """--set, each `key=value`."""
    include: str = ""
    """--include: hosts and slots to use, as `launcher.filters.select` reads them."""
    exclude: str = ""
    """--exclude: hosts and slots to leave out."""
    launcher: str | None = None
    """--launcher: how other hosts are reached."""
    master_addr: str | None = None
    """--master-addr: where the ranks meet."""
    master_port: int | None = None
    """--master-port."""
    interface: str | None = None
    """--interface: of NCCL and gloo."""
    max_restarts: int | None = None
    """--max-restarts: after lost hosts and killed ranks."""
    elastic: bool = False
    """--elastic: with the hosts that are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The merged spec before any check of its content."""

    data: dict[str, Any]
    places: dict[KeyPath, Place]
    problems: tuple[Problem, ...]
    readable: bool
    """False when the file could not be read at all; `problems` says why."""
    file: str
    """The spec file as problems name it."""
    text: str
    """The spec file as given."""
    origin: str
    """What the launcher prints as the spec's source."""
    blank: frozenset[KeyPath] = frozenset()
    """Keys whose value was not taken, for a reason in `problems`: it is None in `data`, and nothing more is to be said of it."""
    other_stage: bool = False
    """Whether zero.stage is another one than the spec was written for: what has no effect in it is then no mistake, and is left out."""

    def place(self, path: KeyPath) -> Place:
        """Where `path` was set, or else the nearest key above it, or the file."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Place(self.file))

    def given(self, key: str) -> bool:
        """Whether the user set `key` (dotted)."""
        return tuple(key.split(".")) in self.places

    def located(self, problem: Problem, path: KeyPath) -> Problem:
        """The problem with `path` as its subject and the place where that was set."""
        place = self.place(path)
        return replace(problem, where=problem.where or dotted(path), file=place.file, line=place.line)


def read_draft(options: Options) -> Draft:
    """Reads the spec file and puts the options over it. Raises nothing: what is wrong stands in `problems`."""
    path, label, origin = _choose(options)
    document, text = _read(path, label)
    return put_over(document, options, label=label, text=text, origin=origin)


def put_over(document: Document, options: Options, *, label: str, text: str, origin: str) -> Draft:
    """The document with the options over it; the keywords are the draft's fields. Raises nothing, as `read_draft`."""
    merge = Merge(document, label)
    if document.readable:
        for option, path, value in _own_options(options):
            if value is not None:
                merge.assign(path, value, option)
        for text_of_set in options.sets:
            merge.set(text_of_set)
        merge.displace()
        merge.withhold(document)
        read_quantities(merge.data)
    problems = (*document.problems, *merge.problems, *_told_secrets(text, label, merge))
    return Draft(
        data=merge.data,
        places=merge.places,
        problems=problems,
        readable=document.readable,
        file=label,
        text=text,
        origin=origin,
        blank=frozenset(merge.blank),
    )


def _told_secrets(text: str, label: str, merge: Merge) -> list[Problem]:
    """A problem for each line of the file with a secret in a key or a comment; those in values are told already."""
    # Variables of the ranks have a rule of their own.
    told = {place.line for path, place in merge.places.items() if path[:2] == ("cluster", "environment")}
    told |= {problem.line for problem in merge.problems if problem.file == label}
    what = "this line looks like {}, and the file is copied into the run folder"
    return [Problem(what=what.format(kind), fix=SECRET_FIX, file=label, line=line) for line, kind in secret_lines(text) if line not in told]


def _own_options(options: Options) -> list[tuple[str, tuple[str, str], Any]]:
    """Options that stand for one key each: name, key and value (None: not given)."""
    return [
        ("--hosts", ("cluster", "hosts"), None if options.hosts is None else str(options.hosts)),
        ("--zero", ("zero", "stage"), options.zero_stage),
        ("--launcher", ("cluster", "launcher"), options.launcher),
        ("--master-addr", ("cluster", "master_addr"), options.master_addr),
        ("--master-port", ("cluster", "master_port"), options.master_port),
        ("--interface", ("cluster", "interface"), options.interface),
        ("--max-restarts", ("cluster", "max_restarts"), options.max_restarts),
        ("--elastic", ("cluster", "elastic"), options.elastic or None),
    ]


def _choose(options: Options) -> tuple[Path, str, str]:
    """(file to read, its name in messages, its name as the source of the run)."""
    if options.spec_path is not None:
        path = Path(options.spec_path)
        if str(path) == STDIN:
            return path, STDIN_LABEL, STDIN_LABEL
        return path, str(path), str(path)
    if Path(SPEC_NAME).exists():
        return Path(SPEC_NAME), SPEC_NAME, SPEC_NAME
    return DEFAULT_SPEC, DEFAULT_LABEL, DEFAULT_ORIGIN


def _read(path: Path, label: str) -> tuple[Document, str]:
    try:
        raw = _stdin() if label == STDIN_LABEL else _start_of(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        fix = f"give the run's own spec: {path / 'spec.yaml'}" if os.path.isfile(path / "spec.yaml") else "give an existing file with --spec"
        return unreadable(Problem(what=f"can't read the spec: {reason}", fix=fix, file=label)), ""
    if len(raw) > MOST_BYTES:
        return unreadable(Problem(what="more than 4 MiB: that is no spec", fix="give the file with the spec; data files are named in it", file=label)), ""
    return read_document(raw, label, Variables(environment=os.environ, is_secret=is_secret)), raw.decode("utf-8", errors="replace")


def _start_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)


@functools.cache
def _stdin() -> bytes:
    """Standard input, which can be read once."""
    return sys.stdin.buffer.read(MOST_BYTES + 1)
