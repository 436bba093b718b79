"""Data files -> prepared samples: found in the cache, or made chunk by chunk and put there."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ftcore.data.cache import Counts, SampleSet
from ftcore.data.cache_key import cache_key
from ftcore.data.columns import Columns, write_columns
from ftcore.data.digests import file_digest, file_identity, remembered
from ftcore.data.formats.decide import decide_format
from ftcore.data.gathered import Gathered, MistakeLog, RowProgress
from ftcore.data.lock import exclusive
from ftcore.data.overlong import OVERLONG
from ftcore.data.prepared import ModelSource, PreparedSet
from ftcore.data.problems import stop_on
from ftcore.data.reading.digest import source_digest
from ftcore.data.reading.find import find_files
from ftcore.data.reading.reader import read_chunks
from ftcore.data.reading.rows import BadRow, Chunk, Row, Source
from ftcore.data.row_work import BAD_ROW, RowWork
from ftcore.data.tokenizer import writes_date
from ftcore.data.workers import processes_for, results, usable_cores
from ftcore.spec.data_formats import LOOKED_AT
from ftcore.spec.errors import DataError, Problem
from ftcore.spec.events import emit
from ftcore.spec.run_dir import replacing
from ftcore.spec.sections import DataSection, DataSet

BAD_CHUNKS = 8
"""Chunks read in vain for a first row that can be read; then it is told what is wrong with theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """One set that is being made."""

    work: RowWork
    source: Source
    identities: list[object]
    """Of the files, before their digest was made."""
    arrow: Path
    """The cache file to be."""
    mistakes: Path
    """Where all mistakes stand if they are many."""


def prepare_set(key: str, dataset: DataSet, data: DataSection, model: ModelSource, cache_dir: Path, mistakes_dir: Path | None = None) -> PreparedSet:
    """The cached samples of `dataset`, made if they aren't there yet; `key` is what the spec calls it (data.train).

    `mistakes_dir`: where a file with all mistakes goes when there are too many to show; None: into the cache.
    Raises DataError naming the rows that can't be used, and when no row is left.
    """
    source = find_files(dataset, key, purpose="train" if key.startswith("data.train") else "eval", cache_dir=cache_dir)
    identities = _identities(source)
    digest = source_digest(source, lambda path: file_digest(path, cache_dir))
    arrow = cache_dir / "data" / f"{cache_key(digest, dataset, data, model)}.arrow"
    with exclusive(arrow.with_suffix(".lock"), lambda holder: _tell_wait(key, holder)):
        if not _is_usable(arrow, cache_dir):
            _remove_remains(arrow)
            mistakes = mistakes_dir / f"{key}.txt" if mistakes_dir else arrow.with_suffix(".bad_rows.txt")
            work = RowWork(key=key, dataset=dataset, data=data, model=model)
            _make(Making(work=work, source=source, identities=identities, arrow=arrow, mistakes=mistakes))
    prepared = describe(arrow, tuple(file.name for file in source.files))
    _tell(key, prepared)
    return prepared


def describe(arrow: Path, files: tuple[str, ...] = ()) -> PreparedSet:
    """The counts of a cache file, for prepared.json; `files` are the names of what it was made of. Raises DataError when the file is damaged."""
    samples = SampleSet.open(arrow)
    return PreparedSet(
        arrow=str(arrow.absolute()),
        samples=len(samples),
        fingerprint=samples.fingerprint,
        files=files,
        outcomes=str(outcomes_path(arrow).absolute()),
        **asdict(samples.counts),
    )


def outcomes_path(arrow: Path) -> Path:
    """The file with a line for each row that isn't as it was, beside a cache file."""
    return arrow.with_suffix(".outcomes.jsonl")


def _is_usable(arrow: Path, cache_dir: Path) -> bool:
    if not arrow.exists():
        return False
    try:
        samples, outcomes = SampleSet.open(arrow), outcomes_path(arrow)
        if not outcomes.is_file():
            reason = "its outcomes are gone"
        elif file_digest(outcomes, cache_dir) != samples.outcomes_digest:
            reason = "its outcomes have changed since they were written"
        elif remembered(arrow, cache_dir, "intact", lambda path: str(SampleSet.open(path).is_intact())) == "True":
            return True
        else:
            reason = "its bytes have changed since it was written"
    except DataError as error:
        reason = error.problems[0].what
    emit("note", text=f"prepared data {arrow.name} is made anew: {reason}")
    return False


def _tell_wait(key: str, holder: str) -> None:
    emit("note", text=f"{key}: {holder or 'another process'} is preparing the same data: waiting for it, to use what it makes")


def _remove_remains(arrow: Path) -> None:
    """What a process left that was killed while it wrote this cache; only the holder of its lock may."""
    for pattern in (f".{arrow.name}.*", f".{outcomes_path(arrow).name}.*"):
        for path in arrow.parent.glob(pattern):
            path.unlink(missing_ok=True)


def _make(making: Making) -> None:
    work, source = making.work, making.source
    first, chunks = _first_rows(read_chunks(source), work.dataset.path)
    decided, reason = decide_format(work.dataset, first, work.key)
    if work.dataset.format == "auto":
        emit("note", text=f"{work.key}: the format is {decided.format} ({reason})")
    if decided.format not in ("text", "tokenized") and writes_date(work.model.path, work.data.chat_template):
        emit("note", text="the chat template writes today's date: the prepared samples keep the date of this preparation")
    work = replace(work, dataset=decided)
    size = sum(file.size for file in source.files)
    processes = work.data.num_proc or processes_for(size, usable_cores())
    # With torch in sight transformers imports it for its tokenizers too: seconds, and hundreds of megabytes, in each process.
    hidden = () if work.model.trust_remote_code else ("torch",)
    by = f" with {processes} processes" if processes > 1 else ""
    emit("progress", stage="prepare", done=0, total=0, text=f"{work.key}: reading {work.dataset.path}{by}")
    progress = RowProgress(work.key, size)
    arrow = making.arrow
    with replacing(outcomes_path(arrow)) as outcomes, Gathered(arrow.parent, outcomes, MistakeLog(making.mistakes), progress) as gathered:
        with contextlib.closing(results(work, chunks, processes, hidden)) as worked:
            for each in worked:
                gathered.add(each)
        _require_unchanged(making)
        gathered.mistakes.stop(work.dataset.path)
        if not gathered.columns.samples:
            raise _nothing_left(work, gathered)
        columns = gathered.columns.columns()
        progress.end(gathered.tally.rows)
        write_columns(arrow, columns, asdict(_counts(gathered, columns, decided.format)), gathered.outcomes_digest)


def _identities(source: Source) -> list[object]:
    """What each file on disk is now; those that come with ftlaunch stand on none."""
    return [file_identity(file.path) if file.path.is_file() else None for file in source.files]


def _require_unchanged(making: Making) -> None:
    """Raises DataError when a file is not the one any more whose digest names the cache: other rows would be found under it."""
    now = zip(making.source.files, making.identities, _identities(making.source), strict=True)
    what, fix = "the file changed while it was read", "run again once nobody writes to it"
    changed = [Problem(what=what, file=file.name, where=making.work.key, fix=fix) for file, before, after in now if before != after]
    if changed:
        raise DataError(changed)


def _first_rows(chunks: Iterator[Chunk], name: str) -> tuple[list[Row], Iterator[Chunk]]:
    """The first rows that can be read, and all chunks. Raises DataError when there are none among very many."""
    held: list[Chunk] = []
    rows: list[Row] = []
    problems: list[Problem] = []
    for chunk in chunks:
        held.append(chunk)
        for row in chunk.rows():
            if isinstance(row, BadRow):
                problems.extend(row.problems)
            else:
                rows.append(row)
        if len(rows) >= LOOKED_AT or (not rows and len(held) >= BAD_CHUNKS):
            break
    if not rows:
        stop_on(problems, name)
    return rows, itertools.chain(held, chunks)


def _counts(gathered: Gathered, columns: Columns, form: str) -> Counts:
    tally = gathered.tally
    return Counts(
        rows=tally.rows,
        tokens=len(columns.ids),
        supervised_tokens=int(columns.supervised.sum(dtype="int64")),
        dropped=dict(sorted(tally.dropped.items())),
        dropped_tokens=tally.dropped_tokens,
        truncated=tally.truncated,
        format=form,
        bad_rows=tally.dropped[BAD_ROW],
        split=tally.split,
        lost_ends=tally.lost_ends,
        dropped_turns=tally.dropped_turns,
        repeated_tokens=tally.repeated_tokens,
        duplicates=gathered.columns.duplicates(),
    )


def _nothing_left(work: RowWork, gathered: Gathered) -> DataError:
    tally = gathered.tally
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(tally.dropped.items()))
    bad = f" (the first, {gathered.first_bad})" if gathered.first_bad else ""
    cut = OVERLONG in tally.dropped or work.data.overlong.startswith("truncate")
    fix = f"raise data.max_length ({work.data.max_length}), or look at the rows" if cut else "look at the rows: none has an answer that counts"
    what = f"no row is left: of {tally.rows} rows, {reasons}{bad}"
    return DataError([Problem(what=what, file=work.dataset.path, where=work.key, fix=fix)])


def _tell(key: str, prepared: PreparedSet) -> None:
    """Says what is not trained on as it stands in the files; nothing when every row is."""
    parts = [f"{sum(prepared.dropped.values())} of {prepared.rows} rows dropped ({', '.join(f'{n} {why}' for why, n in prepared.dropped.items())})"]
    parts = parts if prepared.dropped else []
    parts += [f"{prepared.truncated} cut to data.max_length"] if prepared.truncated else []
    parts += [f"{prepared.lost_ends} of them lost the end of their last answer"] if prepared.lost_ends else []
    parts += [f"{prepared.split} split"] if prepared.split else []
    parts += [f"{prepared.dropped_turns} turns longer than a sample may be left out"] if prepared.dropped_turns else []
    if parts:
        emit("note", text=f"{key}: {', '.join(parts)}; row by row in {prepared.outcomes}")
