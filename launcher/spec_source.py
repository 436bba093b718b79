"""What the user asked for, put together from the spec file and the command line, with the place of every value.

Precedence, lowest first: the defaults of ftcore.spec.sections, the spec file, then the options (--hosts, --zero, --launcher, ..., --set), by which each
key may be given once.
Of keys that stand for the same thing (num_train_epochs and max_steps, ...) one given on the command line displaces the other one in the file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ftcore.spec.document import Document, KeyPath, bad_text, describe, dotted, read_document, unreadable
from ftcore.spec.errors import Problem
from ftcore.spec.yaml_strict import parse_scalar, parse_yaml

SPEC_NAME = "ftlaunch.yaml"
DEFAULT_SPEC = Path(__file__).with_name("default.yaml")
DEFAULT_LABEL = "launcher/default.yaml"
DEFAULT_ORIGIN = f"the embedded default (no spec given, no ./{SPEC_NAME})"

ALTERNATIVES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("batch", "global_batch_size"), ("batch", "tokens_per_update")),
    (("train", "num_train_epochs"), ("train", "max_steps")),
    (("schedule", "warmup_ratio"), ("schedule", "warmup_steps")),
    (("cluster", "hosts"), ("cluster", "slots")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says about the spec."""

    spec_path: str | Path | None = None
    """The spec file; None: ./ftlaunch.yaml if it is there, else the embedded default."""
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


@dataclass(frozen=True, slots=True)
class Place:
    """Who set a value: a line of a file, or an option (without a line)."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


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
    merge = _Merge(document, label)
    if document.readable:
        for option, path, value in _own_options(options):
            if value is not None:
                merge.assign(path, value, option)
        for text_of_set in options.sets:
            merge.set(text_of_set)
        merge.displace()
    problems = (*document.problems, *merge.problems)
    return Draft(data=merge.data, places=merge.places, problems=problems, readable=document.readable, file=label, text=text, origin=origin)


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
        return path, str(path), str(path)
    if Path(SPEC_NAME).exists():
        return Path(SPEC_NAME), SPEC_NAME, SPEC_NAME
    return DEFAULT_SPEC, DEFAULT_LABEL, DEFAULT_ORIGIN


def _read(path: Path, label: str) -> tuple[Document, str]:
    try:
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return unreadable(Problem(what=f"can't read the spec: {reason}", fix="give an existing file with --spec", file=label)), ""
    return read_document(raw, label), raw.decode("utf-8", errors="replace")


class _Merge:
    """The file's data with options put over it."""

    def __init__(self, document: Document, label: str) -> None:
        self.data = document.data
        self.places = {path: Place(label, line) for path, line in document.lines.items() if path}
        self.problems: list[Problem] = []
        self._label = label
        self._by_option: dict[KeyPath, str] = {}

    def set(self, text: str) -> None:
        """One `key=value` of --set; `null` takes the key out."""
        key, equals, raw = text.partition("=")
        path = tuple(part.strip() for part in key.split("."))
        if not equals or not all(path):
            self._refuse(f"`key=value` expected, got {describe(text)}", "", "for example --set optimizer.learning_rate=1e-4")
            return
        value, problems = _parse_value(raw.strip())
        if problems:
            self.problems += [replace(problem, file="--set", line=None, where=key) for problem in problems]
            return
        if value is None:
            self._claim(path, "--set")
            self._remove(path)
        else:
            self.assign(path, value, "--set")

    def assign(self, path: tuple[str, ...], value: Any, option: str) -> None:
        """Puts one value at `path`; a mapping is put there key by key."""
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                self.assign((*path, key), inner, option)
            return
        if not self._claim(path, option):
            return
        home = self.data
        for depth, part in enumerate(path[:-1], start=1):
            if home.get(part) is None:
                home[part] = {}
                self.places[path[:depth]] = Place(option)
            if not isinstance(home[part], dict):
                self._refuse(f"`{dotted(path[:depth])}` is no section: it holds {describe(home[part])}", dotted(path), "set the key itself", option)
                return
            home = home[part]
        self._forget(path)
        home[path[-1]] = value
        self.places[path] = Place(option)

    def displace(self) -> None:
        """Drops from the file the alternative of a key that an option set."""
        for pair in ALTERNATIVES:
            for chosen, other in (pair, pair[::-1]):
                if chosen in self._by_option and other in self.places and other not in self._by_option:
                    self._remove(other)

    def _claim(self, path: tuple[str, ...], option: str) -> bool:
        """Whether no option spoke of `path` before; refuses the second one."""
        for known, first in self._by_option.items():
            if known[: len(path)] == path[: len(known)]:
                both = f"{first} and {option}" if first != option else f"{option} twice"
                self._refuse(f"`{dotted(path)}` is set by {both}", dotted(path), "give it once", option)
                return False
        self._by_option[path] = option
        return True

    def _remove(self, path: tuple[str, ...]) -> None:
        home: Any = self.data
        for part in path[:-1]:
            home = home.get(part) if isinstance(home, dict) else None
        if isinstance(home, dict):
            home.pop(path[-1], None)
        self._forget(path)

    def _forget(self, path: tuple[str, ...]) -> None:
        for known in [known for known in self.places if known[: len(path)] == path]:
            del self.places[known]

    def _refuse(self, what: str, where: str, fix: str, option: str = "--set") -> None:
        self.problems.append(Problem(what=what, where=where, fix=fix, file=option))


def _parse_value(raw: str) -> tuple[Any, list[Problem]]:
    """The value of a --set by the rules of a spec file: `[a, b]`, `{a: b}` and quoted text as in YAML, all else one scalar."""
    value: Any = parse_scalar(raw) if raw else ""
    problems: list[Problem] = []
    if raw[:1] in tuple("[{\"'"):
        try:
            value, _, problems = parse_yaml(raw, "--set")
        except RecursionError:
            problems = [Problem(what="nested too deeply to read", fix="write the value in the spec file")]
    return value, problems + [Problem(what=f"{reason} in {describe(text)}", fix="write plain text") for _, text, reason in bad_text(value)]
