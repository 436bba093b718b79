"""zero.config: what an existing DeepSpeed JSON says, put into a draft of a spec where the user said nothing.

Precedence, lowest first: defaults, the JSON, the spec file, the command line. What the JSON and the spec file say of one thing must be
the same; all that contradicts is a problem. What the spec has no key for goes to zero.overrides, so that a run's resolved.json holds
everything and a resume does not read the JSON again.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ftcore.spec.document import Document, KeyPath, describe, dotted
from ftcore.spec.errors import Problem
from ftcore.spec.sections import TrainSection, ZeroSection
from launcher.ds_json.keys import keys_of_spec
from launcher.ds_json.training import Statement, batch_statement, optimizer_statements, precision_statement, schedule_statements
from launcher.ds_json.walk import OFFLOADS, ZERO, Remark, Sorted, check_types, modernise, value_at, walk, without_notes
from launcher.references import absolute
from launcher.spec_source import Draft, Place
from launcher.spec_values import secrets

CONFIG: KeyPath = ("zero", "config")
OVERRIDES: KeyPath = ("zero", "overrides")
RIVALS = {"batch.global_batch_size": "batch.tokens_per_update", "schedule.warmup_steps": "schedule.warmup_ratio"}
"""Key of the spec -> another key that decides the same thing."""
STAGE, PRECISION = ZeroSection().stage, TrainSection().precision
"""What a spec that says nothing has."""
SIGNS = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping", "fp16", "bf16")
"""Keys at the top that DeepSpeed's files have, and specs don't; two of them tell one."""
OTHERS = frozenset({"model_name_or_path", "base_model", "dataset", "datasets", "learning_rate", "output_dir"})
"""Keys that other tools' configurations have beside such signs, and DeepSpeed's files don't."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A draft with the JSON's values in it."""

    draft: Draft
    warnings: tuple[str, ...] = ()
    """What was ignored, or read in another way than DeepSpeed would, with file and line."""
    text: str = ""
    """The JSON for the run's folder: without comments and notes, with the warnings as a note; empty without a zero.config."""


def import_ds_json(draft: Draft, world_size: int | None) -> Imported:
    """The draft with what its zero.config says, and what is wrong with that among its problems. Without a zero.config: the draft itself."""
    label = value_at(draft.data, CONFIG)
    if not isinstance(label, str) or not label or "\0" in label:
        return Imported(draft)
    # Here and not at the top: most specs name no DeepSpeed JSON.
    from launcher.ds_json.relaxed import read_ds_json

    document = read_ds_json(absolute(label), label)
    if not document.readable:
        # Without a line, it is a mistake of the key that names the file.
        told = [problem if problem.line else draft.located(replace(problem, what=f"{label}: {problem.what}"), CONFIG) for problem in document.problems]
        return Imported(replace(draft, problems=(*draft.problems, *told)))
    return _Import(draft, document, label).run(world_size)


def in_json_words(problems: list[Problem], draft: Draft) -> list[Problem]:
    """The problems of a draft; those of keys that the JSON passes on to DeepSpeed under their names in the JSON."""
    label, prefix = value_at(draft.data, CONFIG), f"{dotted(OVERRIDES)}."
    return [replace(problem, where=problem.where.removeprefix(prefix)) if label and problem.file == label else problem for problem in problems]


def is_ds_json(data: dict[str, Any]) -> bool:
    """Whether what was given as a spec is a DeepSpeed JSON."""
    has_signs = isinstance(data.get(ZERO), dict) or (sum(sign in data for sign in SIGNS) > 1 and not OTHERS & data.keys())
    return "model" not in data and "data" not in data and has_signs


class _Import:
    """One JSON on its way into a draft."""

    def __init__(self, draft: Draft, document: Document, label: str) -> None:
        self.draft = replace(draft, data=copy.deepcopy(draft.data), places=dict(draft.places))
        self.label = label
        self.lines = dict(document.lines)
        self.found = Sorted()
        self.form_problems = document.problems
        self.given = document.data
        self.data = modernise(document.data, self.lines, self.found)

    def run(self, world_size: int | None) -> Imported:
        wrong = check_types(self.data, self.found)
        walk(self.data, self._stage(), wrong, self.found)
        for statement in self._statements(world_size):
            self._state(statement)
        self._pass_on()
        problems = [replace(item.problem, where=dotted(item.path), file=self.label, line=self._line(item.path)) for item in self.found.problems]
        problems += [replace(problem, where=dotted(path), file=self.label, line=self._line(path)) for path, problem in secrets(self.given)]
        draft = replace(self.draft, problems=(*self.draft.problems, *self.form_problems, *problems))
        warnings = tuple(self._told(self.found.remarks))
        return Imported(draft, warnings, self._kept(warnings))

    def _kept(self, warnings: tuple[str, ...]) -> str:
        # Comet's block holds a key of its service.
        own = {key: value for key, value in without_notes(self.given).items() if key != "comet"}
        return json.dumps({"_from": absolute(self.label), "_warnings": list(warnings), **own}, indent=2, ensure_ascii=False) + "\n"

    def _stage(self) -> int:
        given = self._given("zero.stage")
        stage = given if given is not None else value_at(self.data, (ZERO, "stage"))
        return stage if type(stage) is int else STAGE

    def _statements(self, world_size: int | None) -> Iterator[Statement]:
        found, precision = self.found, self._given("train.precision")
        for path, value in list(found.said.items()):
            if path in keys_of_spec() and not self._keeps_preset(path, value):
                yield Statement(keys_of_spec()[path], value, path)
        decided = precision_statement(found, precision)
        self._drop_of_fp16(precision or (decided.value if decided else PRECISION))
        size_given = any(self._given(key) is not None for key in ("batch.global_batch_size", "batch.tokens_per_update"))
        yield from (statement for statement in (decided, batch_statement(found, world_size, size_given=size_given)) if statement)
        yield from optimizer_statements(found, self._given("optimizer.type"))
        yield from schedule_statements(found, self._given("train.max_steps"))
        yield from self._nvme_paths()

    def _keeps_preset(self, path: KeyPath, value: Any) -> bool:
        if path != (ZERO, "sub_group_size") or value != 0:
            return False
        self.found.remark(path, "ignored: 0 makes each parameter a step of its own for the optimizer; the preset's size is used")
        return True

    def _drop_of_fp16(self, precision: str) -> None:
        """The keys of a loss scale say nothing in another precision; Hugging Face's files carry them everywhere."""
        if precision != "fp16":
            self.found.passed = {path: value for path, value in self.found.passed.items() if path[0] != "fp16"}

    def _nvme_paths(self) -> Iterator[Statement]:
        said, seen = self.found.said, ""
        for block in OFFLOADS:
            path: KeyPath = (ZERO, block, "nvme_path")
            folder = said.get(path)
            if not folder or said.get((ZERO, block, "device")) != "nvme":
                continue
            if seen and seen != folder:
                self.found.refuse(path, f"a second folder beside {seen}", "use one folder on local NVMe")
            else:
                yield Statement("zero.nvme_path", folder, path)
            seen = folder

    def _state(self, statement: Statement) -> None:
        """Takes a value over, unless the spec says the same, or something else."""
        for key in (statement.key, RIVALS.get(statement.key, "")):
            given = self._given(key) if key else None
            if given is None:
                continue
            if key != statement.key or not _is_same(given, statement.value):
                self._contradict(statement, key, given)
            return
        self._put(tuple(statement.key.split(".")), statement.value, statement.path)

    def _contradict(self, statement: Statement, key: str, given: Any) -> None:
        place = self.draft.place(tuple(key.split(".")))
        if place.line is None and place.file.startswith("--"):
            self.found.remark(statement.path, f"{place} wins: {key} is {_shown(given)}, not {_shown(statement.value)}")
            return
        what = f"{_shown(statement.value)} contradicts {key}: {_shown(given)} ({place})"
        self.found.refuse(statement.path, what, f"keep one of them: remove it here, or {key} there")

    def _pass_on(self) -> None:
        """Puts into zero.overrides what DeepSpeed reads and the spec has no key for; what stands there already wins."""
        zero = self.draft.data.get("zero")
        if not isinstance(zero.get("overrides", {}) if isinstance(zero, dict) else None, dict):
            return
        for path, value in self.found.passed.items():
            if path[0] == ZERO and path[1] in OFFLOADS and (zero or {}).get(str(path[1]), "none") == "none":
                continue
            if path == (ZERO, "reduce_scatter") and value is False and self._stage() == 3:
                self.found.remark(path, "ignored: false scales gradients another way at stage 3")
            elif value_at(self.draft.data, (*OVERRIDES, *path)) is None:
                self._put((*OVERRIDES, *path), value, path)

    def _put(self, key: KeyPath, value: Any, path: KeyPath) -> None:
        home: Any = self.draft.data
        for part in key[:-1]:
            if home.get(part) is None:
                home[part] = {}
            home = home[part]
            if not isinstance(home, dict):
                # A mistake of the spec, which is told.
                return
        home[key[-1]] = value
        self.draft.places[key] = Place(self.label, self._line(path))

    def _given(self, key: str) -> Any:
        """What the user set `key` to; None when nobody did. A value that the JSON brought is none of the user's."""
        path = tuple(key.split("."))
        return value_at(self.draft.data, path) if path in self.draft.places and self.draft.places[path].file != self.label else None

    def _line(self, path: KeyPath) -> int | None:
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)

    def _told(self, remarks: list[Remark]) -> Iterator[str]:
        """A line for each thing that is said, at the first of the keys it is said of."""
        together: dict[tuple[KeyPath, str], list[Remark]] = {}
        for remark in remarks:
            together.setdefault((remark.path[:-1], remark.text), []).append(remark)
        for (_, text), group in sorted(together.items(), key=lambda item: self._line(item[1][0].path) or 0):
            names = [dotted(group[0].path), *(str(remark.path[-1]) for remark in group[1:])]
            yield f"{self.label}:{self._line(group[0].path)}: {', '.join(names)}: {text}"


def _is_same(given: Any, said: Any) -> bool:
    if isinstance(given, str) and isinstance(said, list):
        return [given] == said
    if isinstance(given, str) and isinstance(said, str) and "/" in said:
        return absolute(given) == absolute(said)
    return isinstance(given, bool) == isinstance(said, bool) and bool(given == said)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else describe(value) if not isinstance(value, list) else str(value)
