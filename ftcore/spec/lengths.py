"""How long a data set's samples are, as a preparation found them: counted once, for the plans of later runs. CACHE/lengths/KEY.json."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.errors import FtError
from ftcore.spec.names import CHAT_TEMPLATES
from ftcore.spec.sections import DataSection, DataSet, ModelSection
from ftcore.spec.stored import read_stored

LENGTHS_VERSION = 2
TOKENIZER_FILES = ("tokenizer*", "*.jinja", "additional_chat_templates/*.jinja", "vocab*", "merges.txt")
"""Of a local model folder: what makes tokens of a text."""
BINS_A_DOUBLING = 4
"""Lengths that differ by less than a factor of 2^(1/4) share a bin of the histogram."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLengths:
    """Counts of one prepared data set, and which file they were counted in."""

    rows: int
    samples: int
    """Rows that are trained on."""
    tokens: int
    supervised_tokens: int
    squares: int
    """Sum over the samples of length², which attention's work goes by."""
    longest: int
    histogram: dict[str, int]
    """Upper bound of a bin (as text, ascending) -> samples of at most that length, above the bound before."""
    file: str
    """What the spec names: a file, a folder, a pattern, a hub id or a `builtin:` name."""
    file_bytes: int
    """Of all its files."""
    modified_ns: int
    """The newest file's time when they were counted; 0 for builtin data and data sets of the hub."""
    arrow: str = ""
    """The prepared samples that were counted; they go together."""
    version: int = LENGTHS_VERSION


def lengths_path(cache_dir: Path, dataset: DataSet, data: DataSection, model: ModelSection) -> Path:
    """Where the counts of a data set lie: named by everything that decides them and can be known without a tokenizer, but for the file's content."""
    parts = {
        "version": LENGTHS_VERSION,
        "path": dataset.path,
        "name": dataset.name,
        "split": dataset.split,
        "data_revision": dataset.revision,
        "format": dataset.format,
        "columns": sorted(dataset.columns.items()),
        "roles": sorted(dataset.roles.items()),
        "max_length": data.max_length,
        "overlong": data.overlong,
        "on_bad_row": data.on_bad_row,
        "loss_on": data.loss_on,
        "chat_template": [data.chat_template, _states([] if data.chat_template in CHAT_TEMPLATES else [data.chat_template])],
        "model": model.model_name_or_path,
        "tokenizer": _states(_tokenizer_files(model.model_name_or_path)),
        "revision": model.revision,
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return cache_dir / "lengths" / f"{digest[:32]}.json"


def _tokenizer_files(model: str) -> list[str]:
    """Those of a local folder, or the one file that is all; none of a hub id."""
    place = os.path.expanduser(model)
    if not os.path.isdir(place):
        return [place]
    return sorted(file for pattern in TOKENIZER_FILES for file in glob.glob(os.path.join(glob.escape(place), pattern)))


def _states(files: list[str]) -> list[tuple[int, int]]:
    """(bytes, time of the last change in ns) of each file that is there."""
    states = []
    for file in files:
        with contextlib.suppress(OSError):
            state = os.stat(file)
            if stat.S_ISREG(state.st_mode):
                states.append((state.st_size, state.st_mtime_ns))
    return states


def read_lengths(path: Path) -> StoredLengths | None:
    """The counts in a file; None when there are none, or they can't be read: a plan then assumes."""
    if not path.is_file():
        return None
    try:
        return read_stored(StoredLengths, path, version=LENGTHS_VERSION, name="counts of a data set", fix="")
    except FtError:
        return None


def file_state(path: str) -> tuple[int, int]:
    """(bytes, time of the last change in ns) of a data file, of all files of a folder or of a pattern together; zeros where there are none to look at."""
    place = os.path.expanduser(path)
    if os.path.isdir(place):
        found = [os.path.join(folder, name) for folder, _, names in os.walk(place) for name in names]
    elif os.path.exists(place):
        found = [place]
    else:
        found = glob.glob(place, recursive=True)
    size = modified = 0
    for each in found:
        with contextlib.suppress(OSError):
            state = os.stat(each)
            size, modified = size + state.st_size, max(modified, state.st_mtime_ns)
    return size, modified


def length_bin(length: int) -> int:
    """The upper bound of the bin that a length falls into: the least ceil(2^(k/4)) that is no smaller."""
    if length <= 1:
        return 1
    step = max(0, math.floor(math.log2(length) * BINS_A_DOUBLING) - 1)
    while True:
        bound = math.ceil(2 ** (step / BINS_A_DOUBLING))
        if bound >= length:
            return bound
        step += 1
