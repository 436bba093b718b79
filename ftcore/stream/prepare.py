"""What a stream reads: found before any rank exists, without reading the rows but the first ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from ftcore.data.digests import file_digest
from ftcore.data.formats.decide import decide_format
from ftcore.data.prepared import ModelSource
from ftcore.data.problems import stop_on
from ftcore.data.reading.batches import row_count
from ftcore.data.reading.digest import source_digest
from ftcore.data.reading.find import find_files
from ftcore.data.reading.reader import OPEN_END, parts, read_at
from ftcore.data.reading.remote import is_remote
from ftcore.data.reading.rows import BadRow, DataFile, Row, Source
from ftcore.data.stream_source import Shard, StreamFile, StreamSet, StreamSource
from ftcore.data.templates.named import template_digest
from ftcore.data.tokenizer import tokenizer_files
from ftcore.spec.data_formats import LOOKED_AT
from ftcore.spec.data_paths import path_kind
from ftcore.spec.errors import DataError, Problem
from ftcore.spec.events import emit
from ftcore.spec.sections import DataSection, TrainingSet
from ftcore.stream.remote import hub_files, remote_digest

STREAM_VERSION = 1
"""Raise it when the same files give other samples, or the same samples in another order: positions of older cursors are then refused."""
BAD_ROWS = 1000
"""Rows read in vain for a first one that can be read; then it is told what is wrong with them."""


def prepare_stream(data: DataSection, model: ModelSource, cache_dir: Path) -> StreamSource:
    """Files, formats and shards of all sets to train on. Raises DataError with the mistakes of all of them."""
    sets: list[StreamSet] = []
    files: list[StreamFile] = []
    problems: list[Problem] = []
    for name, dataset in data.training.items():
        key = data.training_keys[name]
        emit("progress", stage="prepare", done=0, total=0, text=f"{key}: looking at {dataset.path}")
        try:
            source, digest = _find(key, dataset, cache_dir)
            found, reason = decide_format(dataset, _first_rows(source), key)
        except DataError as error:
            problems.extend(problem for problem in error.problems if problem not in problems)
            continue
        decided = replace(dataset, format=found.format, columns=found.columns)
        fingerprint = _fingerprint(digest, decided, data, model)
        sets.append(StreamSet(name=name, key=key, dataset=decided, reason=reason, revision=source.revision, fingerprint=fingerprint))
        files += [_stored(file, len(sets) - 1) for file in source.files]
    if problems:
        raise DataError(problems)
    return _assembled(sets, files, data)


def _find(key: str, dataset: TrainingSet, cache_dir: Path) -> tuple[Source, str]:
    """The files of a set, and the digest of their bytes; those of the hub stay there."""
    if path_kind(dataset.path) == "hub":
        source, blobs = hub_files(dataset, key, cache_dir)
        return source, remote_digest(source, blobs)
    source = find_files(dataset, key, purpose="train", cache_dir=cache_dir)
    return source, source_digest(source, lambda path: file_digest(path, cache_dir))


def _first_rows(source: Source) -> list[Row]:
    """Rows to tell the format by. Raises DataError when there are none that can be read."""
    rows: list[Row] = []
    problems: list[Problem] = []
    for file in source.files:
        for _, row in islice(read_at(file), BAD_ROWS):
            if isinstance(row, BadRow):
                problems.extend(row.problems)
            else:
                rows.append(row)
            if len(rows) >= LOOKED_AT:
                return rows
        if not rows and problems:
            stop_on(problems, file.name)
    if not rows:
        raise DataError([Problem(what="no rows: all files are empty", file=", ".join(file.name for file in source.files[:3]), fix="name files with rows")])
    return rows


def _assembled(sets: Sequence[StreamSet], files: Sequence[StreamFile], data: DataSection) -> StreamSource:
    weighted = len(sets) > 1 and sets[0].dataset.weight is not None
    totals = [max(1, sum(file.size for file in files if file.set == index or not weighted)) for index in range(len(sets))]
    shards = tuple(shard for number, file in enumerate(files) for shard in cut_file(file, number, data.lanes, totals[file.set]))
    counts = [None if is_remote(file.data_file) else row_count(file.data_file) for file in files]
    rows = sum(count or 0 for count in counts) if all(count is not None for count in counts) else None
    how = [STREAM_VERSION, data.lanes, data.shuffle_buffer, [[each.name, each.fingerprint, each.dataset.weight] for each in sets]]
    cuts = [[shard.file, shard.start, shard.end, shard.size] for shard in shards]
    return StreamSource(
        sets=tuple(sets),
        files=tuple(files),
        shards=shards,
        lanes=data.lanes,
        buffer_rows=data.shuffle_buffer,
        rows=rows,
        fingerprint=_hash([how, cuts]),
    )


def cut_file(file: StreamFile, number: int, lanes: int, total: int) -> list[Shard]:
    """The shards of a file: as many of `lanes` as its share of `total` bytes, rounded up, where it can be cut; else one."""
    wanted = max(1, -(-lanes * file.size // total))
    # To cut a file takes a look into it, which is a request for one of the hub.
    cuts = parts(file.data_file, wanted) if wanted > 1 else [(0, OPEN_END)]
    size = file.size // len(cuts)
    return [Shard(file=number, start=start, end=None if end == OPEN_END else end, size=size) for start, end in cuts]


def _stored(file: DataFile, number: int) -> StreamFile:
    return StreamFile(path=str(file.path), name=file.name, kind=file.kind, compression=file.compression, size=file.size, set=number)


def _fingerprint(digest: str, dataset: TrainingSet, data: DataSection, model: ModelSource) -> str:
    """Of all that decides which samples a set's rows become. What stops at a bad row and what drops it read the same otherwise, so that rule is left out."""
    files = [[str(file.relative_to(model.path)), hashlib.sha256(file.read_bytes()).hexdigest()] for file in tokenizer_files(model.path)]
    fields = [dataset.format, sorted(dataset.columns.items()), sorted(dataset.roles.items())]
    rules = [template_digest(data.chat_template), data.loss_on, data.max_length, data.overlong, model.trust_remote_code]
    return _hash([STREAM_VERSION, digest, fields, files, rules])


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
