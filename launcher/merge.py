"""A spec file's data with the command line's options put over it, key by key, and the place of every value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ftcore.spec.document import Document, KeyPath, bad_text, describe, dotted
from ftcore.spec.errors import Problem
from ftcore.spec.yaml_strict import parse_scalar, parse_yaml
from launcher.spec_values import secrets

ALTERNATIVES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("batch", "global_batch_size"), ("batch", "tokens_per_update")),
    (("train", "num_train_epochs"), ("train", "max_steps")),
    (("schedule", "warmup_ratio"), ("schedule", "warmup_steps")),
    (("schedule", "decay_ratio"), ("schedule", "decay_steps")),
    (("cluster", "hosts"), ("cluster", "slots")),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Who set a value: a line of a file, or an option (without a line)."""

    file: str
    line: int | None = None
    variables: tuple[str, ...] = ()
    """References to the environment in the value, `${NAME}` each."""

    def __str__(self) -> str:
        return " ".join([self.file if self.line is None else f"{self.file}:{self.line}", *dict.fromkeys(self.variables)])


class Merge:
    """The file's data with options put over it."""

    def __init__(self, document: Document, label: str) -> None:
        self.data = document.data
        self.places = {path: Place(label, line, tuple(document.variables.get(path, ()))) for path, line in document.lines.items() if path}
        self.problems: list[Problem] = []
        self.blank: set[KeyPath] = set()
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

    def withhold(self, document: Document) -> None:
        """Blanks each key that refers to an unset variable, unless an option gave it another value, and each one that holds a secret."""
        for path, unset in document.unset.items():
            place = self.places.get(path)
            if place is not None and place.line is not None:
                self._blank(path, [replace(problem, where=dotted(path)) for problem in unset])
        for path, problem in list(secrets(self.data)):
            place = self.places.get(path) or self.places.get(_key(path), Place(self._label))
            self._blank(path, [replace(problem, where=dotted(path), file=place.file, line=place.line)])

    def _blank(self, path: KeyPath, problems: list[Problem]) -> None:
        self.problems += problems
        *sections, name = _key(path)
        home: Any = self.data
        for part in sections:
            home = home.get(part) if isinstance(home, dict) else None
        if isinstance(home, dict) and name in home:
            home[name] = None
            self.blank.add(_key(path))

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


def _key(path: KeyPath) -> KeyPath:
    """The path of the key that holds what lies at `path`, perhaps within a list."""
    return path[: next((depth for depth, part in enumerate(path) if isinstance(part, int)), len(path))]


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
