"""Files written and read back, for the tests of reading."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from ftcore.data.reading.find import find_files
from ftcore.data.reading.reader import parts, read_at, read_chunks, read_one
from ftcore.data.reading.rows import BadRow, Row, Source
from ftcore.spec.data_sections import DataSet
from ftcore.spec.errors import DataError


def source_of(path: Path | str, *, purpose: str = "train", **options: Any) -> Source:
    """The files of a data set."""
    return find_files(DataSet(path=str(path), **options), "data.train", purpose=purpose, cache_dir=Path("none"))  # type: ignore[arg-type]


def read(path: Path | str, *, purpose: str = "train", rows: int = 256, **options: Any) -> list[Row | BadRow]:
    """All rows of a data set, each chunk parsed as another process would; and the same rows by position and in parts."""
    source = source_of(path, purpose=purpose, **options)
    found = [row for chunk in read_chunks(source, rows) for row in pickle.loads(pickle.dumps(chunk)).rows()]
    assert [row.number for row in found] == list(range(1, len(found) + 1))
    for file in source.files:
        mine = [outcome(row) for row in found if row.file == file.name]
        positions = [0, *(after for after, _ in read_at(file))]
        assert [outcome(row) for start, end in parts(file, 3) for _, row in read_at(file, start, end)] == mine
        assert [outcome(read_one(file, position)) for position in positions[:-1]] == mine
        if mine:
            with pytest.raises(DataError, match="no row at position"):
                read_one(file, positions[-1])
    return found


def outcome(row: Row | BadRow) -> Any:
    """A row's value, or that it is bad and why."""
    return row.value if isinstance(row, Row) else [problem.what for problem in row.problems]


def read_bytes(folder: Path, name: str, data: bytes) -> list[Row | BadRow]:
    """The rows of a file with these bytes."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return read(path)


def values(folder: Path, name: str, data: bytes) -> list[Any]:
    """What `read_bytes` gives, as `outcome`s."""
    return [outcome(row) for row in read_bytes(folder, name, data)]


def refused(folder: Path, name: str, data: bytes) -> DataError:
    """Why a file with these bytes is refused."""
    with pytest.raises(DataError) as caught:
        read_bytes(folder, name, data)
    return caught.value
