"""What prepared samples depend on, as one key: whatever changes any of it makes another cache."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

from ftcore.data.prepared import ModelSource
from ftcore.data.templates.named import template_digest
from ftcore.data.tokenizer import tokenizer_digest
from ftcore.spec.sections import DataSection, DataSet

APART = ("cache_errors", "collect", "digests", "lengths", "lock", "mix", "model_room", "prepared", "stream_source", "worker", "workers")
"""Modules of ftcore.data that have no say in what a row becomes."""
BESIDE = ("data_formats", "names")
"""Modules of ftcore.spec that have one: how a format is told, and its fields."""


def cache_key(data_digest: str, dataset: DataSet, data: DataSection, model: ModelSource) -> str:
    """64 hex digits over everything that the samples depend on.

    The data's bytes (`source_digest`), the format with its columns and roles, tokenizer files, chat template, what of a row is learned,
    length, what becomes of over-long and bad rows, and the code. Where the files lie and what they are called doesn't count.
    """
    parts = {
        "code": code_digest(),
        "data": data_digest,
        "format": dataset.format,
        "columns": sorted(dataset.columns.items()),
        "roles": sorted(dataset.roles.items()),
        "tokenizer": tokenizer_digest(model.path),
        "trust_remote_code": model.trust_remote_code,
        "chat_template": template_digest(data.chat_template),
        "loss_on": data.loss_on,
        "max_length": data.max_length,
        "overlong": data.overlong,
        "on_bad_row": data.on_bad_row,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def code_digest() -> str:
    """sha256 over the source of all that decides what a row becomes: another version of ftlaunch makes caches of its own where that code differs."""
    folder = Path(__file__).parent
    files = [path for path in sorted(folder.rglob("*.py")) if path.parent != folder or path.stem not in APART]
    files += [folder.parent / "spec" / f"{name}.py" for name in BESIDE]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"\0{file.relative_to(folder.parent)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
