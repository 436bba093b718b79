"""Data file -> prepared samples: read, render, tokenise, fit to the length, cache."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from ftcore.data.cache import Counts, SampleSet, write_samples
from ftcore.data.chat import ChatRenderer, Rendered
from ftcore.data.fields import Record, TextPair, to_records
from ftcore.data.lock import exclusive
from ftcore.data.prepared import ModelSource, PreparedSet
from ftcore.data.problems import placed, stop_on
from ftcore.data.records import load_bytes, parse_rows
from ftcore.data.spans import Aligner, Int32Array, Tokens, TokenSpan, count_supervised
from ftcore.data.tokenizer import load_tokenizer, tokenizer_digest, writes_date
from ftcore.data.workers import Tokenise, processes_for, tokenise_chunks
from ftcore.spec.errors import DataError, Problem
from ftcore.spec.events import emit
from ftcore.spec.sections import DataSection, DataSet

MASK_RULE = "assistant turns with their ends, each with its weight"
CODE_VERSION = 2
"""Raise it when the same inputs give other samples: caches of older versions are then made anew."""
CHUNK_ROWS = 256
"""Rows tokenised in one call, which spreads over threads; progress is told once a chunk."""


@dataclass(slots=True)
class Kept:
    """Samples so far, and what became of the other rows."""

    ids: list[Int32Array] = field(default_factory=list)
    spans: list[tuple[TokenSpan, ...]] = field(default_factory=list)
    weights: list[tuple[float, ...]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    dropped_tokens: int = 0
    truncated: int = 0
    problems: list[Problem] = field(default_factory=list)


def prepare_set(key: str, dataset: DataSet, data: DataSection, model: ModelSource, cache_dir: Path) -> PreparedSet:
    """The cached samples of `dataset`, made if they aren't there yet; `key` is what the spec calls it (data.train).

    Raises DataError naming every row that can't be used, and when no row is left.
    """
    payload = load_bytes(dataset.path)
    path = cache_dir / "data" / f"{cache_key(payload, dataset, data, model)}.arrow"
    with exclusive(path.with_suffix(".lock")):
        if not _is_usable(path):
            _build(key, payload, dataset, data, model, path)
    return describe(path)


def cache_key(payload: bytes, dataset: DataSet, data: DataSection, model: ModelSource) -> str:
    """64 hex digits over everything that the samples depend on: data bytes, fields, tokenizer and template, mask rule, length, code."""
    parts = {
        "code": CODE_VERSION,
        "data": hashlib.sha256(payload).hexdigest(),
        "json": dataset.path.endswith(".json"),
        "format": dataset.format,
        "columns": sorted(dataset.columns.items()),
        "tokenizer": tokenizer_digest(model.path),
        "mask": MASK_RULE,
        "max_length": data.max_length,
        "overlong": data.overlong,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def describe(path: Path) -> PreparedSet:
    """The counts of a cache file, for prepared.json. Raises DataError when the file is damaged."""
    samples = SampleSet.open(path)
    return PreparedSet(arrow=str(path.absolute()), samples=len(samples), fingerprint=samples.fingerprint, **asdict(samples.counts))


def _is_usable(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        if SampleSet.open(path).is_intact():
            return True
        reason = "its bytes have changed since it was written"
    except DataError as error:
        reason = error.problems[0].what
    emit("note", text=f"prepared data {path.name} is made anew: {reason}")
    return False


def _build(key: str, payload: bytes, dataset: DataSet, data: DataSection, model: ModelSource, path: Path) -> None:
    emit("progress", stage="prepare", done=0, total=0, text=f"{key}: reading {dataset.path}")
    if dataset.format == "messages" and writes_date(model.path):
        emit("note", text="the chat template writes today's date: the prepared samples keep the date of this preparation")
    records = to_records(parse_rows(payload, dataset.path), dataset, key)
    kept = Kept()
    done = 0
    for chunk, results in _tokenised(records, model):
        for record, result in zip(chunk, results, strict=True):
            _keep(record, result, data, dataset.path, kept)
        done += len(chunk)
        emit("progress", stage="prepare", done=done, total=len(records), text=f"{key}: tokenising")
    stop_on(kept.problems, dataset.path)
    if not kept.ids:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(kept.dropped.items()))
        raise DataError(
            [
                Problem(
                    what=f"no row is left: of {len(records)} rows, {reasons}",
                    file=dataset.path,
                    where=key,
                    fix=f"raise data.max_length ({data.max_length}), or look at the rows",
                )
            ]
        )
    weighted = sum(any(weight != 1 for weight in weights) for weights in kept.weights)
    if weighted:
        emit("note", text=f"{key}: {weighted} of {len(kept.ids)} samples have weights, which the loss is divided by the sum of")
    write_samples(path, kept.ids, kept.spans, kept.rows, _counts(kept, len(records)), kept.weights)


def _counts(kept: Kept, rows: int) -> Counts:
    return Counts(
        rows=rows,
        tokens=sum(len(ids) for ids in kept.ids),
        supervised_tokens=sum(count_supervised(spans) for spans in kept.spans),
        dropped=dict(sorted(kept.dropped.items())),
        dropped_tokens=kept.dropped_tokens,
        truncated=kept.truncated,
    )


def _tokenised(records: Sequence[Record], model: ModelSource) -> Iterator[tuple[Sequence[Record], list[Tokens | DataError]]]:
    chunks = [records[start : start + CHUNK_ROWS] for start in range(0, len(records), CHUNK_ROWS)]
    make = partial(make_tokenise, model.path, model.trust_remote_code)
    yield from zip(chunks, tokenise_chunks(chunks, make, processes_for(len(records), os.cpu_count() or 1)), strict=True)


def make_tokenise(path: str, trust_remote_code: bool) -> Tokenise:
    """A function from records to their tokens, or to why a record can't be used.

    Raises SpecError or DataError when the tokenizer itself can't be used; a missing chat template only once there are messages to render.
    """
    tokenizer = load_tokenizer(path, trust_remote_code=trust_remote_code)
    aligner = Aligner(tokenizer)
    renderer: list[ChatRenderer] = []

    def tokenise(records: Sequence[Record]) -> list[Tokens | DataError]:
        results: list[Tokens | DataError | Rendered] = []
        for record in records:
            if not isinstance(record, TextPair) and not renderer:
                renderer.append(ChatRenderer(tokenizer))
            try:
                results.append(aligner.pair(record) if isinstance(record, TextPair) else renderer[0].render(record))
            except DataError as error:
                results.append(error)
        encoded = iter(aligner.encode([result for result in results if isinstance(result, Rendered)]))
        return [next(encoded) if isinstance(result, Rendered) else result for result in results]

    return tokenise


def _keep(record: Record, result: Tokens | DataError, data: DataSection, file: str, kept: Kept) -> None:
    """Fits one row to data.max_length and counts it."""
    row = record.row
    if isinstance(result, DataError):
        kept.problems.extend(placed(result, file=file, row=row.number, line=row.line))
        return
    length = len(result.ids)
    if length > data.max_length and data.overlong == "error":
        what = f"{length} tokens, data.max_length is {data.max_length}"
        kept.problems.append(
            Problem(what=what, file=file, line=row.line, where=f"row {row.number}", fix="raise data.max_length, or set data.overlong to drop or truncate_right")
        )
        return
    if length > data.max_length and data.overlong == "drop":
        kept.dropped["overlong"] += 1
        kept.dropped_tokens += length
        return
    fitted = cut_right(result, data.max_length)
    if fitted.supervised == 0:
        kept.dropped["no_supervised_tokens"] += 1
        kept.dropped_tokens += length
        return
    kept.truncated += length > len(fitted.ids)
    kept.dropped_tokens += length - len(fitted.ids)
    kept.ids.append(fitted.ids)
    kept.spans.append(fitted.spans)
    kept.weights.append(fitted.weights)
    kept.rows.append(row.number)


def cut_right(tokens: Tokens, max_length: int) -> Tokens:
    """The first `max_length` tokens, with the supervised ranges that remain and their weights."""
    spans = tuple((start, min(end, max_length)) for start, end in tokens.spans if start < max_length)
    return Tokens(ids=tokens.ids[:max_length], spans=spans, weights=tokens.weights[: len(spans)])
