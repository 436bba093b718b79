"""Parquet and Arrow: values as they were before a columnar file unified them, as far as it kept them (case D06)."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcore.data.reading.batches import GROUP, row_count
from ftcore.data.reading.columnar import nulls_in, rows_of
from ftcore.data.reading.reader import parts, read_chunks
from ftcore.data.reading.rows import BadRow, Row
from tests.unit.read_files import outcome, read, refused, source_of

CASES = Path(__file__).resolve().parents[1] / "cases" / "data"


def write(table: pa.Table, path: Path, rows: int = 2) -> None:
    """The table as the file's name says, `rows` rows a group or batch."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows)
        return
    with pa.OSFile(str(path), "wb") as sink, (pa.ipc.new_stream if "stream" in path.name else pa.ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table, rows)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "stream.arrow"])
def test_rows_come_as_they_were_written(tmp_path: Path, name: str) -> None:
    rows = [{"messages": [{"role": "user", "content": str(index)}] * (index % 3), "n": index or None} for index in range(7)]
    write(pa.Table.from_pylist(rows), tmp_path / name)
    assert [outcome(row) for row in read(tmp_path / name)] == rows
    assert [row.line for row in read(tmp_path / name, rows=3)] == [None] * 7


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_foreign_keys_of_structs_are_left_out_and_counted(tmp_path: Path, name: str) -> None:  # D06
    rows = [json.loads(line) for line in (CASES / "tools_two_schemas.jsonl").read_text().splitlines()]
    write(pa.Table.from_pylist(rows), tmp_path / name)
    first, second = read(tmp_path / name)
    assert isinstance(first, Row)
    assert isinstance(second, Row)
    assert [list(row.value["tools"][0]["function"]["parameters"]["properties"]) for row in (first, second)] == [["a"], ["b"]]
    # A null argument that was meant is lost with them, since nothing in the file tells it apart: it is counted, too.
    assert first.value["messages"][1]["tool_calls"][0]["function"]["arguments"] == {}
    assert first.nulls_left_out > 0


@pytest.mark.parametrize("kind", [pa.json_(), pa.map_(pa.string(), pa.string())])
def test_json_and_maps_keep_their_own_keys_and_nulls(tmp_path: Path, kind: Any) -> None:  # D06
    given_rows = [{"a": None}, {"b": "1"}, None]
    if isinstance(kind, pa.MapType):
        column = pa.array([None if row is None else list(row.items()) for row in given_rows], kind)
    else:
        column = pa.ExtensionArray.from_storage(kind, pa.array([None if row is None else json.dumps(row) for row in given_rows]))
    for name in ("a.parquet", "a.arrow"):
        write(pa.table({"tool": column}), tmp_path / name)
        found = read(tmp_path / name)
        assert [outcome(row)["tool"] for row in found] == given_rows
        assert [row.nulls_left_out for row in found if isinstance(row, Row)] == [0, 0, 0]


def test_json_text_that_is_none_is_a_bad_row(tmp_path: Path) -> None:
    texts = ['{"a": 1}', '{"a": 1, "a": 2}', "{", "[" * 100_000]
    table = pa.table({"tool": pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts))})
    write(table, tmp_path / "a.parquet", rows=10)
    found = read(tmp_path / "a.parquet")
    assert [type(row) for row in found] == [Row, BadRow, BadRow, BadRow]
    assert "'a' stands twice" in outcome(found[1])[0]
    assert "a column of JSON holds text that is none: Expecting property name" in outcome(found[2])[0]
    assert "not usable JSON" in outcome(found[3])[0]


def test_other_types_become_text_or_plain_values() -> None:
    columns: dict[str, Any] = {
        "when": pa.array([dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
        "day": pa.array([dt.date(2026, 1, 2)]),
        "span": pa.array([dt.timedelta(seconds=1)]),
        "price": pa.array([decimal.Decimal("1.50")]),
        "bytes": pa.array([b"caf\xc3\xa9"]),
        "image": pa.array([b"\xff\xd8"]),
        "word": pa.array(["x"]).dictionary_encode(),
        "pair": pa.array([[{"a": 1, "b": None}, {"a": None, "b": dt.date(2026, 1, 2)}]], pa.list_(pa.struct([("a", pa.int32()), ("b", pa.date32())]), 2)),
        "large": pa.array([["x"]], pa.large_list(pa.large_string())),
        "empty": pa.array([{}], pa.struct([])),
        "nothing": pa.nulls(1),
        "flag": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1], pa.int8())),
        "half": pa.array([0.5], pa.float16()),
    }
    ((value, nulls),) = rows_of(pa.record_batch(columns))
    assert nulls == nulls_in(pa.record_batch(columns)) == 2
    assert value == {
        "when": "2026-01-02T03:00:00+00:00",
        "day": "2026-01-02",
        "span": "0:00:01",
        "price": "1.50",
        "bytes": "caf\u00e9",
        "image": b"\xff\xd8",
        "word": "x",
        "pair": [{"a": 1}, {"b": "2026-01-02"}],
        "large": ["x"],
        "empty": {},
        "nothing": None,
        "flag": 1,
        "half": 0.5,
    }


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "stream.arrow"])
def test_cut_files_are_refused(tmp_path: Path, name: str) -> None:
    write(pa.table({"a": list(range(1000)), "b": ["word " * 20] * 1000}), tmp_path / name, rows=100)
    data = (tmp_path / name).read_bytes()
    (problem,) = refused(tmp_path, f"cut_{name}", data[: len(data) * 2 // 3]).problems
    assert problem.file == str(tmp_path / f"cut_{name}")
    assert f"({len(data) * 2 // 3} bytes)" in problem.what
    assert problem.fix
    assert "no rows" in str(refused(tmp_path, "empty.arrow", b"")) or name != "a.arrow"


def test_other_bytes_under_these_names_are_refused(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.arrow", "b.parquet"):
        assert "can't be read as" in refused(tmp_path, name, b"" if name == "b.parquet" else b'{"a": 1}\n' * 10).problems[0].what
    for name in ("a.jsonl", "a.json", "a.csv", "a.jsonl.gz"):
        write(pa.table({"a": [1]}), tmp_path / "rows.parquet")
        assert "of the kind parquet under another name" in refused(tmp_path, name, (tmp_path / "rows.parquet").read_bytes()).problems[0].what
    assert "unpack it" in refused(tmp_path, "a.parquet.gz", b"x").problems[0].what


def test_no_rows(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.arrow", "stream.arrow"):
        write(pa.table({"a": pa.array([], pa.int64())}), tmp_path / name)
        assert "no rows" in str(refused(tmp_path, name, (tmp_path / name).read_bytes()))


def test_chunks_carry_only_their_own_rows(tmp_path: Path) -> None:
    write(pa.table({"a": ["x" * 1000] * 2000}), tmp_path / "a.arrow", rows=2000)
    chunks = list(read_chunks(source_of(tmp_path / "a.arrow"), 10))
    assert (len(chunks), chunks[3].first, chunks[3].count) == (200, 31, 10)
    assert len(pickle.dumps(chunks[3])) < 20_000


def test_parts_of_parquet_are_row_groups(tmp_path: Path) -> None:
    write(pa.table({"a": list(range(10))}), tmp_path / "a.parquet", rows=3)
    (file,) = source_of(tmp_path / "a.parquet").files
    assert [start for start, _ in parts(file, 2)] == [0, 2 * GROUP]
    assert len(parts(file, 9)) == 4
    assert row_count(file) == 10
    (lines,) = source_of(CASES / "bom.jsonl").files
    assert row_count(lines) is None


VALUES = st.recursive(
    st.none() | st.text(max_size=3) | st.booleans(),
    lambda inner: st.lists(inner.filter(lambda value: value is not None), max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def nulls_of(value: Any) -> int:
    if isinstance(value, dict):
        return sum(1 if each is None else nulls_of(each) for each in value.values())
    return sum(map(nulls_of, value)) if isinstance(value, list) else 0


@given(rows=st.lists(st.fixed_dictionaries({"x": VALUES}), min_size=1, max_size=5))
def test_random_values_are_those_that_arrow_kept(rows: list[dict[str, Any]]) -> None:
    try:
        table = pa.Table.from_pylist(rows)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return  # types that no column can hold side by side
    batch = table.combine_chunks().to_batches()[0]
    for start in range(len(rows)):
        found = rows_of(batch.slice(start))
        assert sum(count for _, count in found) == nulls_in(batch.slice(start))
        assert sum(count for _, count in found) == sum(nulls_of(value) for value in table["x"].to_pylist()[start:])
        assert [value["x"] for value, _ in found] == [without_nulls(value) for value in table["x"].to_pylist()[start:]]


def test_the_json_type_of_the_library_datasets_is_exact(tmp_path: Path) -> None:  # D06
    import datasets

    datasets.disable_progress_bars()
    rows = [
        {"tools": [{"name": "f", "a": None}], "m": [{"role": "u", "args": {"x": None}}]},
        {"tools": [{"b": 1}], "m": [{"role": "u", "args": {"y": [1, "z"]}}]},
    ]
    features = datasets.Features({"tools": datasets.Json(), "m": datasets.List({"role": datasets.Value("string"), "args": datasets.Json()})})
    made = datasets.Dataset.from_list(rows, features=features)
    made.to_parquet(str(tmp_path / "a.parquet"))
    made.save_to_disk(str(tmp_path / "saved"))
    for name in ("a.parquet", "saved"):
        assert [outcome(row) for row in read(tmp_path / name)] == rows


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "stream.arrow"])
def test_a_name_that_stands_twice_is_refused(tmp_path: Path, name: str) -> None:
    """One of the two columns would be trained on, and nobody would know which."""
    text = pa.array(["x"])
    columns = pa.table([text, text, text], names=["prompt", "completion", "completion"])
    inside = pa.table({"messages": pa.ListArray.from_arrays([0, 1], pa.StructArray.from_arrays([text, text], names=["content", "content"]))})
    for table, what in ((columns, "'completion' stands twice"), (inside, "'content' stands twice"), (columns.rename_columns(["", "a", ""]), "'' stands twice")):
        write(table, tmp_path / name)
        (problem,) = refused(tmp_path, name, (tmp_path / name).read_bytes()).problems
        assert what in problem.what


def test_a_key_twice_in_a_map_is_a_bad_row(tmp_path: Path) -> None:
    write(pa.table({"a": pa.array([[("x", 1)], [("x", 1), ("x", 2)]], pa.map_(pa.string(), pa.int64()))}), tmp_path / "a.arrow")
    assert [outcome(row) for row in read(tmp_path / "a.arrow")] == [{"a": {"x": 1}}, ["the key 'x' stands twice in one map"]]
