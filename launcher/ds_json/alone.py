"""Another JSON in the place of a spec, told as what it is: a run's resolved.json, and a DeepSpeed JSON, which is checked by itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.spec.document import Document, read_document
from ftcore.spec.errors import Problem
from launcher.ds_json.importing import import_ds_json, in_json_words, is_ds_json
from launcher.ds_json.relaxed import read_ds_json, without_comments
from launcher.spec_source import Draft, Options, put_over

SUFFIXES = (".json", ".conf", ".hjson", ".json5")
"""Of files that may be a DeepSpeed JSON."""
_REST = {"model": {"model_name_or_path": "builtin:tiny-llama"}, "data": {"train": {"path": "builtin:extraction/train"}}}
"""What every spec says."""


@dataclass(frozen=True, slots=True)
class Alone:
    """What is wrong with a DeepSpeed JSON whatever the spec, and what is ignored of it."""

    problems: list[Problem]
    warnings: tuple[str, ...]


def ds_json_problem(draft: Draft) -> Problem | None:
    """That what was given as a spec is a DeepSpeed JSON, and how such a file is used; None for anything else."""
    data = draft.data if draft.readable else _data(draft)
    if not is_ds_json(data):
        return None
    fix = f"write a spec with `model`, `data` and `zero: {{config: {draft.file}}}`; `ftlaunch validate {draft.file}` checks the JSON by itself"
    return Problem(what="this is a DeepSpeed JSON, not a spec", fix=fix, file=draft.file)


def run_file_problem(draft: Draft) -> Problem | None:
    """That what was given as a spec is a run's resolved.json, and what to give; None for anything else."""
    if not {"spec", "hosts", "sources", "version"} <= set(draft.data):
        return None
    run = Path(draft.file).parent
    fix = f"the run's spec is {run / 'spec.yaml'}; ftlaunch --resume {run} goes on with it as it was resolved"
    return Problem(what="this is what a run's spec was resolved to, not a spec", fix=fix, file=draft.file)


def check_alone(path: Path, options: Options) -> Alone | None:
    """The JSON as zero.config of a spec that says nothing else, on this machine's ranks; None when the file is no DeepSpeed JSON.

    `options` may say more about the spec, as on the command line.
    """
    if path.suffix not in SUFFIXES or not path.is_file():
        return None
    document = read_ds_json(str(path), str(path))
    if not is_ds_json(document.data):
        return None
    from launcher.validate import find_problems

    text = json.dumps({**_REST, "zero": {"config": str(path)}})
    draft = put_over(read_document(text.encode(), "spec.json"), options, label="spec.json", text="", origin="")
    imported = import_ds_json(draft, None)
    return Alone(in_json_words(find_problems(imported.draft, None), imported.draft), imported.warnings)


def _data(draft: Draft) -> dict[str, Any]:
    """The content of a file that is no JSON because of its comments."""
    if not draft.file.endswith(SUFFIXES):
        return {}
    document: Document = read_document(without_comments(draft.text.encode()), "ds.json")
    return document.data
