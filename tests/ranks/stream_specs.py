"""Streams of tokenised rows for rank tests: files of uneven lengths and sizes, and specs that read them."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from ftcore.spec.data_sections import TrainingSet
from ftcore.spec.sections import Spec
from tests.ranks.small_model import VOCABULARY
from tests.ranks.specs import make_spec, with_section

ROWS = {"a.jsonl": 34, "b.jsonl": 9, "c.jsonl.gz": 21}
"""File -> rows of `write_stream`."""
LONG = 7
"""Every so many rows one is longer than max_length."""


def rows_of(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows of 3 to 40 tokens, all but the first learned; each seventh has 60, as two halves of unlearned and learned ones."""
    random = np.random.default_rng(seed)
    rows = []
    for row in range(count):
        length = 60 if row % LONG == LONG - 1 else int(random.integers(3, 41))
        ids = random.integers(3, VOCABULARY, size=length).tolist()
        rows.append({"input_ids": ids, "labels": [-100, *ids[1:]]})
    return rows


def write_stream(folder: Path, files: dict[str, int] = ROWS) -> str:
    """Files of rows, one of them compressed; the pattern that names them."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, count) in enumerate(files.items()):
        text = "".join(json.dumps(row) + "\n" for row in rows_of(count, seed)).encode()
        (folder / name).write_bytes(gzip.compress(text, mtime=0) if name.endswith(".gz") else text)
    return str(folder / "*.jsonl*")


def stream_spec(pattern: str, *, updates: int = 12, save_steps: int = 0, stage: int = 2, batch: dict[str, Any] | None = None, **data: Any) -> Spec:
    """A spec of the small model that reads the files of a pattern in 5 lanes, 6 samples an update."""
    spec = make_spec(stage, updates=updates, save_steps=save_steps)
    spec = with_section(spec, "batch", **({"global_batch_size": 6} if batch is None else batch))
    section = dataclasses.replace(spec.data, train=TrainingSet(path=pattern), streaming=True, lanes=5, shuffle_buffer=4)
    return dataclasses.replace(spec, data=dataclasses.replace(section, **data))
