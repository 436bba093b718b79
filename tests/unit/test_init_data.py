"""What `ftlaunch init` sees of files that are not plain JSONL, and that what it offers is what the preparation finds."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftcore.data.formats.decide import decide_format
from ftcore.data.reading.rows import Row
from ftcore.spec.document import read_document
from ftcore.spec.sections import DataSet
from launcher.init.data_files import DataFile, find_data, look_at
from tests.unit.base_models import shared_data
from tests.unit.test_init import init, write_rows

ALPACA = {"instruction": "a", "input": "b", "output": "c"}
TALK = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
ROWS: list[dict[str, Any]] = [
    ALPACA,
    {"conversations": TALK},
    {"chat": TALK, "tools": "[]"},
    {"dialog": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    {"question": "a", "answer": "b", "id": 3},
    {"prompt": "a", "response": "b"},
    {"instruction": "a", "context": "", "response": "b", "category": "x"},
    {"text": "a", "meta": {}},
    {"input_ids": [1, 2], "labels": [-100, 2], "attention_mask": [1, 1]},
]


@pytest.mark.parametrize("row", ROWS, ids="-".join)
def test_the_launcher_and_the_core_find_the_same(row: dict[str, Any], tmp_path: Path) -> None:
    seen = look_at(write_rows(tmp_path / "x.jsonl", row), "x.jsonl")
    decided, _ = decide_format(DataSet(path="x.jsonl"), [Row(number=1, line=1, value=row)], "data.train")
    assert (seen.format, dict(seen.columns)) == (decided.format, decided.columns) and not seen.needs


def table(*rows: dict[str, Any], delimiter: str = ",") -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


LINES = json.dumps(ALPACA).encode() + b"\n"
LONG = {"prompt": "é" * 3000, "completion": "b\nc"}


@pytest.mark.parametrize(
    ("name", "payload", "form"),
    [
        ("x.jsonl.gz", gzip.compress(LINES), "alpaca"),
        ("x.jsonl.bz2", bz2.compress(LINES), "alpaca"),
        ("x.json.xz", lzma.compress(b"[" + LINES + b"]"), "alpaca"),
        ("x.ndjson", LINES, "alpaca"),
        ("x.csv", table(ALPACA, ALPACA), "alpaca"),
        ("x.csv", b"\xef\xbb\xbf" + table(ALPACA, delimiter=";"), "alpaca"),
        ("x.tsv", table(ALPACA, delimiter="\t"), "alpaca"),
        ("x.csv.gz", gzip.compress(table(*[LONG] * 1000)), "prompt_completion"),
        ("x.csv", table({"messages": json.dumps([{"role": "user", "content": "a"}])}), "messages"),
        ("x.parquet", b"PAR1", "auto"),
        ("x.arrow", b"ARROW1", "auto"),
        ("x.jsonl.zst", b"\x28\xb5\x2f\xfd", "auto"),
    ],
)
def test_kinds_of_files(name: str, payload: bytes, form: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(payload)
    (found,) = find_data(tmp_path)
    assert (found.path, found.format, found.needs) == (name, form, "")
    assert form in found.described() or "told when it is prepared" in found.described()
    assert look_at(tmp_path, "folder") == DataFile(path="folder", format=form)


@pytest.mark.parametrize(
    ("name", "payload", "needs"),
    [
        ("x.jsonl.gz", gzip.compress(LINES)[:-5], "can't be read"),
        ("x.jsonl.xz", b"no xz", "can't be read"),
        ("x.csv", b'a,b\n"open', "not CSV"),
        ("x.csv", b"a,b\n", "no rows"),
        ("x.csv", table({"name": "a", "count": "3", "sum": "4"}), "the fields of the first row are name (text)"),
        ("x.jsonl", b'{"chosen": "a", "rejected": "b", "prompt": "c"}\n', "columns: {prompt: prompt, completion: chosen}"),
    ],
)
def test_files_that_are_not_offered_for_training(name: str, payload: bytes, needs: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(payload)
    assert needs in look_at(tmp_path / name, name).needs
    assert [each.path for each in find_data(tmp_path)] == ([name] if "jsonl" in name else [])


@pytest.mark.parametrize("path", ["owner/name", "nowhere/*.jsonl"])
def test_paths_that_are_no_file_are_told_when_they_are_prepared(path: str) -> None:
    assert look_at(Path(path), path) == DataFile(path=path, format="auto")


def test_a_spec_for_alpaca_and_one_for_a_data_set_of_the_hub(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", ALPACA)
    assert init(tmp_path, "--yes", "--model", "owner/name") == 0
    text = (tmp_path / "ftlaunch.yaml").read_bytes()
    assert read_document(text, "ftlaunch.yaml").data["data"]["train"] == {"path": "rows.jsonl", "format": "alpaca"}
    assert b"# instruction, input and output, through the chat template" in text
    assert init(tmp_path, "--yes", "--model", "owner/name", "--data", "people/chats", "-o", "hub.yaml") == 0
    assert read_document((tmp_path / "hub.yaml").read_bytes(), "hub.yaml").data["data"]["train"] == {"path": "people/chats", "format": "auto"}


OFFERED: list[tuple[str, Callable[[DataFile], bool]]] = [
    ("glaive_toolcall_en_demo.json", lambda file: (file.format, file.columns) == ("sharegpt", {})),
    ("sharegpt_dummy_conversation.json", lambda file: (file.format, file.columns) == ("sharegpt", {})),
    ("gsm8k_train.jsonl", lambda file: (file.format, file.columns) == ("prompt_completion", {"prompt": "question", "completion": "answer"})),
    ("gsm8k_test.jsonl", lambda file: file.format == "prompt_completion" and file.is_held_out),
]


@pytest.mark.parametrize(("name", "is_right"), OFFERED, ids=[name for name, _ in OFFERED])
def test_handed_files_are_offered_as_they_are(name: str, is_right: Callable[[DataFile], bool]) -> None:
    found = look_at(shared_data(name), name)
    assert is_right(found) and not found.needs


def test_plain_text_is_told_how_to_become_rows(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("Rain fell on the harbour.\n")
    assert look_at(tmp_path / "plain.txt", "plain.txt").needs == 'it holds no JSON; plain text goes into one JSON object a line: {"text": "..."}'
