"""The built-in data set: the same everywhere, disjoint, and as long as the demo needs."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from ftcore.data.extraction import EVAL_ROWS, TRAIN_ROWS, builtin_bytes, extraction_rows
from ftcore.data.formats.record_maker import to_records
from ftcore.data.reading.reader import read_chunks
from ftcore.data.reading.rows import Row
from ftcore.data.tokens import Tokens
from ftcore.spec.errors import DataError
from ftcore.spec.sections import DataSet
from tests.unit.base_models import SMOLLM2, loaded
from tests.unit.read_files import source_of

TRAIN, EVAL = "builtin:extraction/train", "builtin:extraction/eval"


def rows_of(path: str) -> list[Row]:
    return [row for chunk in read_chunks(source_of(path)) for row in chunk.rows() if isinstance(row, Row)]


def test_bytes_are_the_same_everywhere() -> None:
    digests = [hashlib.sha256(builtin_bytes(path)).hexdigest()[:16] for path in (TRAIN, EVAL)]
    assert digests == ["c7dddd8d3af8f67e", "72eea900f31076d3"]


def test_no_text_is_in_both_parts() -> None:
    texts = [{row.value["messages"][1]["content"] for row in rows_of(path)} for path in (TRAIN, EVAL)]
    assert [len(part) for part in texts] == [TRAIN_ROWS, EVAL_ROWS] == [2000, 100]
    assert not texts[0] & texts[1]


def test_answers_are_compact_json_with_the_fields_asked_for() -> None:
    for row in extraction_rows():
        instruction, text, answer = (message["content"] for message in row["messages"])
        fields = json.loads(answer)
        assert instruction == f"Answer in JSON: {', '.join(fields)}."
        assert answer == json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        for name, value in fields.items():
            if name not in ("type", "currency", "quantity") and value is not None:
                assert str(value) in text


def test_optional_fields_are_often_missing() -> None:
    values = [value for row in extraction_rows() for value in json.loads(row["messages"][2]["content"]).values()]
    assert 0.05 < values.count(None) / len(values) < 0.15


def test_length_in_tokens() -> None:
    records = to_records(rows_of(TRAIN), DataSet(path=TRAIN), "data.train")
    results = [tokens for tokens in loaded(SMOLLM2)[0](records) if isinstance(tokens, Tokens)]
    lengths, supervised = np.array([len(tokens.ids) for tokens in results]), np.array([tokens.supervised for tokens in results])
    assert lengths.min() >= 60
    assert lengths.max() <= 130
    assert 0.3 < supervised.sum() / lengths.sum() < 0.42


def test_unknown_name() -> None:
    with pytest.raises(DataError, match="no data set is built in"):
        builtin_bytes("builtin:extraction/test")
