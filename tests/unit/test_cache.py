"""The Arrow file: exact, memory-mapped, whole or not there, and found out when damaged."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ftcore.data.cache import METADATA, Counts, SampleSet, write_samples
from ftcore.data.tokens import TokenSpan
from ftcore.spec.errors import DataError

IDS = [np.array(ids, dtype=np.int32) for ids in ([5, 6, 7], [8], [9, 1, 2, 3, 4])]
SPANS: list[list[TokenSpan]] = [[(0, 3)], [], [(1, 2), (3, 5)]]
COUNTS = Counts(rows=4, tokens=9, supervised_tokens=5, dropped={"overlong": 1}, dropped_tokens=70)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_samples(tmp_path / "made" / "set.arrow", IDS, SPANS, [1, 2, 4], COUNTS)
    return tmp_path / "made" / "set.arrow"


def test_what_is_written_is_read(path: Path) -> None:
    samples = SampleSet.open(path)
    assert len(samples) == 3
    assert samples.lengths.tolist() == [3, 1, 5]
    assert samples.supervised.tolist() == [2, 0, 3]
    assert samples.lengths.dtype == samples.supervised.dtype == np.int32
    assert samples.counts == COUNTS
    assert samples.highest_id() == 9
    assert samples.is_intact()
    for index, (ids, spans, row) in enumerate(zip(IDS, SPANS, [1, 2, 4], strict=True)):
        sample = samples.sample(index)
        assert (sample.ids.tolist(), sample.spans.tolist(), sample.row) == (ids.tolist(), [list(span) for span in spans], row)
        assert sample.ids.dtype == sample.spans.dtype == np.int32
        assert sample.spans.shape == (len(spans), 2)
        assert not sample.ids.flags.writeable
    assert [file.name for file in path.parent.iterdir()] == ["set.arrow"]


def test_fingerprint_is_of_the_content(path: Path, tmp_path: Path) -> None:
    again, other = tmp_path / "again.arrow", tmp_path / "other.arrow"
    write_samples(again, IDS, SPANS, [1, 2, 4], Counts(rows=3, tokens=9, supervised_tokens=5))
    write_samples(other, IDS, [[(0, 3)], [], [(1, 2), (4, 5), (3, 4)]], [1, 2, 4], Counts(rows=3, tokens=9, supervised_tokens=5))
    assert SampleSet.open(again).fingerprint == SampleSet.open(path).fingerprint != SampleSet.open(other).fingerprint


def test_random_access_is_fast(tmp_path: Path) -> None:
    count = 20_000
    ids = [np.arange(50, dtype=np.int32)] * count
    write_samples(
        tmp_path / "big.arrow", ids, [[(10, 50)]] * count, list(range(1, count + 1)), Counts(rows=count, tokens=50 * count, supervised_tokens=40 * count)
    )
    samples = SampleSet.open(tmp_path / "big.arrow")
    order = np.random.default_rng(0).permutation(count)
    began = time.thread_time()
    total = sum(len(samples.sample(index).ids) for index in order)
    assert total == 50 * count
    assert (time.thread_time() - began) / count < 50e-6


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_file_cut_short(path: Path, keep: float) -> None:
    payload = path.read_bytes()
    path.write_bytes(payload[: int(keep if keep > 1 else keep * len(payload))])
    with pytest.raises(DataError, match="can't use the prepared data"):
        SampleSet.open(path)


def test_changed_byte_is_found(path: Path) -> None:
    payload = bytearray(path.read_bytes())
    at = payload.index(np.array([9, 1, 2], dtype=np.int32).tobytes())
    payload[at] ^= 1
    path.write_bytes(payload)
    assert not SampleSet.open(path).is_intact()


def test_changed_counts_are_found(path: Path) -> None:
    payload = path.read_bytes()
    path.write_bytes(payload.replace(b'"dropped_tokens": 70', b'"dropped_tokens": 71'))
    with pytest.raises(DataError, match="what it says about its samples has changed"):
        SampleSet.open(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="delete the file and run again"):
        SampleSet.open(tmp_path / "none.arrow")


def test_counts_that_contradict_the_columns(path: Path) -> None:
    write_samples(path, IDS, SPANS, [1, 2, 4], Counts(rows=3, tokens=10, supervised_tokens=5))
    with pytest.raises(DataError, match=r"hold \(9, 5\) tokens and supervised tokens"):
        SampleSet.open(path)


def test_other_layout(path: Path) -> None:
    batch = pa.ipc.open_file(path).get_batch(0)
    stored = {**json.loads(batch.schema.metadata[METADATA]), "layout": 99}
    with pa.ipc.new_file(path, batch.schema.with_metadata({METADATA: json.dumps(stored)})) as writer:
        writer.write_batch(batch.replace_schema_metadata({METADATA: json.dumps(stored)}))
    with pytest.raises(DataError, match="layout 99, this ftlaunch reads 3"):
        SampleSet.open(path)


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "set.arrow").mkdir()
    (tmp_path / "set.arrow" / "file").touch()
    with pytest.raises(OSError, match="directory"):
        write_samples(tmp_path / "set.arrow", IDS, SPANS, [1, 2, 4], COUNTS)
    assert [file.name for file in tmp_path.iterdir()] == ["set.arrow"]
