"""Arrow's columns -> rows of plain Python values.

A struct column gives each row every key that any row has; the keys that a row hasn't hold null. So a null inside a struct is left out, and counted:
a null that was meant can't be told apart. A map column and JSON text keep their own keys and nulls.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from ftcore.data.reading.json_text import STRICT

Counts = Any
"""int64 [n]: nulls left out of each value; None where there are none."""


class TwiceError(ValueError):
    """A name that stands twice where each may stand once."""


def name_twice(kind: pa.Schema | pa.DataType) -> str | None:
    """A column, or a key of a struct inside one, that has another of its name beside it; None when there is none."""
    fields = [kind.field(index) for index in range(len(kind) if isinstance(kind, pa.Schema) else kind.num_fields)]
    names = [field.name for field in fields]
    for field in fields:
        own = isinstance(kind, pa.Schema) or pa.types.is_struct(kind)
        twice = field.name if own and names.count(field.name) > 1 else name_twice(field.type)
        if twice is not None:
            return str(twice)
    return None


def rows_of(batch: pa.RecordBatch) -> list[tuple[dict[str, Any], int]]:
    """(values by column, nulls left out) of each row. A null of a column itself stays. Raises ValueError for a column of JSON whose text is none."""
    names, columns, total = batch.schema.names, [], None
    for column in batch.columns:
        values, counts = _values(column)
        columns.append(values)
        total = _sum(total, counts)
    rows = [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]
    return list(zip(rows, [0] * len(rows) if total is None else total.tolist(), strict=True))


def nulls_in(batch: pa.RecordBatch) -> int:
    """How many nulls `rows_of` leaves out of a batch: the same as the sum over its rows, without making them."""
    return sum(_nulls(column) for column in batch.columns)


def _nulls(array: Any) -> int:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return 0 if kind.extension_name == "arrow.json" else _nulls(array.storage)
    if pa.types.is_struct(kind):
        return sum(child.null_count - array.null_count + _nulls(child) for child in array.flatten())
    if pa.types.is_map(kind):
        return _nulls(_within(array, array.items))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _nulls(_within(array, array.values))
    return sum(map(_left_out, array.to_pylist())) if pa.types.is_nested(kind) else 0


def _within(array: Any, values: Any) -> Any:
    """The part of a list array's `values` that its own lists hold."""
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return values.slice(first, last - first)


def _values(array: Any) -> tuple[list[Any], Counts]:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.json":
            return [None if text is None else STRICT.decode(text) for text in array.storage.to_pylist()], None
        return _values(array.storage)
    if pa.types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if pa.types.is_struct(kind):
        return _structs(array)
    if pa.types.is_map(kind):
        return _maps(array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(array)
    if pa.types.is_nested(kind):  # fixed-size lists, list views, unions
        values = array.to_pylist()
        return [_plain(value) for value in values], np.array([_left_out(value) for value in values], dtype=np.int64)
    if _is_plain(kind):
        return array.to_pylist(), None
    return [_scalar(value) for value in array.to_pylist()], None


def _structs(array: Any) -> tuple[list[Any], Counts]:
    names = [field.name for field in array.type]
    children = array.flatten()  # with the struct's own nulls
    columns, counts = [], None
    missing = None
    for child in children:
        values, below = _values(child)
        columns.append(values)
        counts = _sum(counts, below)
        if child.null_count:
            missing = _sum(missing, np.array(child.is_null().to_pylist(), dtype=np.int64))
    if missing is None and not array.null_count:
        rows: list[Any] = [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)] if columns else [{} for _ in range(len(array))]
        return rows, counts
    there = array.is_valid().to_pylist()
    if not columns:
        return [{} if is_there else None for is_there in there], counts
    rows = [
        {name: cell for name, cell in zip(names, cells, strict=True) if cell is not None} if is_there else None
        for cells, is_there in zip(zip(*columns, strict=True), there, strict=True)
    ]
    return rows, _sum(counts, missing * np.array(there))


def _lists(array: Any) -> tuple[list[Any], Counts]:
    starts = _starts(array)
    values, counts = _values(array.values.slice(int(starts[0]), int(starts[-1] - starts[0])))
    starts = starts - starts[0]
    return _cut(array, starts, values), _added(counts, starts)


def _maps(array: Any) -> tuple[list[Any], Counts]:
    starts = _starts(array)
    begin, size = int(starts[0]), int(starts[-1] - starts[0])
    keys, _ = _values(array.keys.slice(begin, size))
    values, counts = _values(array.items.slice(begin, size))
    starts = starts - starts[0]
    pairs = _cut(array, starts, list(zip(keys, values, strict=True)))
    return [None if each is None else _map(each) for each in pairs], _added(counts, starts)


def _map(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise TwiceError(f"the key {next(key for key in value if sum(key == other for other, _ in pairs) > 1)!r} stands twice in one map")
    return value


def _starts(array: Any) -> Any:
    """The offsets of a list array, int64 [n + 1]. (numpy's own conversion would import pandas where it is installed: 0.4 s.)"""
    return np.array(array.offsets.to_pylist(), dtype=np.int64)


def _cut(array: Any, starts: Any, values: list[Any]) -> list[Any]:
    bounds = starts.tolist()
    lists: list[Any] = [values[start:end] for start, end in pairwise(bounds)]
    if array.null_count:
        return [each if is_there else None for each, is_there in zip(lists, array.is_valid().to_pylist(), strict=True)]
    return lists


def _added(counts: Counts, starts: Any) -> Counts:
    """Counts of the elements -> counts of the lists that `starts` cuts them into."""
    if counts is None:
        return None
    sums = np.concatenate(([0], np.cumsum(counts)))
    return sums[starts[1:]] - sums[starts[:-1]]


def _sum(one: Counts, other: Counts) -> Counts:
    return other if one is None else one if other is None else one + other


def _is_plain(kind: Any) -> bool:
    types = pa.types
    tests = (types.is_string, types.is_large_string, types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    return any(test(kind) for test in tests)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return _scalar(value)


def _left_out(value: Any) -> int:
    """Nulls in the objects of a value."""
    if isinstance(value, dict):
        return sum(1 if each is None else _left_out(each) for each in value.values())
    return sum(map(_left_out, value)) if isinstance(value, list) else 0


def _scalar(value: Any) -> Any:
    """Times and decimals as text, bytes as text where they are UTF-8; other bytes stay bytes, which no format takes."""
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | dt.timedelta):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


def json_error(error: ValueError) -> str:
    """What is wrong with a row: with the text of a JSON column, or with a map."""
    if isinstance(error, TwiceError):
        return str(error)
    return f"a column of JSON holds text that is none: {error.msg if isinstance(error, json.JSONDecodeError) else error}"
