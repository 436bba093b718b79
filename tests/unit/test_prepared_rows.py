"""What becomes of rows that are bad, too long, equal or many (C09, E04)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ftcore.data.build import prepare_set
from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource
from ftcore.spec.errors import DataError
from tests.unit.prepared_sets import PAIR, outcomes, pairs, prepared, section, tiny_source, write_rows


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return tiny_source(tmp_path_factory.mktemp("tokenizer"))


def test_bad_rows_are_told_or_left_out(tiny: ModelSource, tmp_path: Path) -> None:
    """Rows that can't be read and rows that break the format's rules, together."""
    path = write_rows(tmp_path / "rows.jsonl", [PAIR, "{broken", {"prompt": 1, "completion": "b"}, "", {"prompt": "c", "completion": "d"}])
    with pytest.raises(DataError) as caught:
        prepared(pairs(path), tiny, tmp_path)
    assert [(problem.line, problem.where) for problem in caught.value.problems] == [(2, "row 2"), (3, "row 3")]
    kept = prepared(pairs(path, on_bad_row="drop"), tiny, tmp_path)
    assert (kept.rows, kept.samples, kept.bad_rows, kept.dropped) == (4, 2, 2, {"bad_row": 2})
    assert [(row["row"], row["line"], row["outcome"], row["tokens"]) for row in outcomes(kept)] == [(2, 2, "bad", 0), (3, 3, "bad", 0)]
    assert [row["reason"].split(":")[0] for row in outcomes(kept)] == ["not JSON", "prompt is a number and completion is a string"]
    assert SampleSet.open(kept.arrow).rows.tolist() == [1, 4]


def test_all_rows_are_bad(tiny: ModelSource, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{**PAIR, "completion": number} for number in range(3)])
    with pytest.raises(DataError, match=r"no row is left: of 3 rows, 3 bad_row \(the first, row 1: prompt is"):
        prepared(pairs(path, on_bad_row="drop"), tiny, tmp_path)
    broken = write_rows(tmp_path / "broken.jsonl", ["{"] * 3000)
    with pytest.raises(DataError, match="and 2028 more mistakes like these in this file"):
        prepared(pairs(broken, on_bad_row="drop"), tiny, tmp_path)


def test_very_many_mistakes_all_stand_in_a_file(tiny: ModelSource, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [PAIR, *({"prompt": "a"} for _ in range(300)), *("{" for _ in range(5))])
    with pytest.raises(DataError) as caught:
        prepare_set("data.train", pairs(path).training["train"], pairs(path), tiny, tmp_path, tmp_path / "mistakes")
    assert len(caught.value.problems) == 21
    file = tmp_path / "mistakes" / "data.train.txt"
    assert caught.value.problems[-1].what == f"and 285 more mistakes like these: all 305 of them stand in {file}"
    lines = file.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 305
    assert lines[0].startswith(f"{path}:2: row 2: no field 'completion'") and lines[-1].startswith(f"{path}:306: row 306: not JSON")
    assert not list((tmp_path / "data").glob("*.arrow"))
    with pytest.raises(DataError, match=r"all 305 of them stand in .*\.bad_rows\.txt"):
        prepared(pairs(path), tiny, tmp_path)


TURNS = [{"role": role, "content": text * 10} for text in "abc" for role in ("user", "assistant")]


@pytest.mark.parametrize(("overlong", "processes"), [("drop", 1), ("truncate_right", 1), ("truncate_left", 1), ("split", 1), ("split", 2)])
def test_tokens_are_accounted_for_row_by_row(overlong: str, processes: int, tiny: ModelSource, tmp_path: Path) -> None:
    """E04: conversations and texts, in each way to fit them; and the same with more processes."""
    rows = [{"messages": [{"role": "system", "content": "s" * number}, *TURNS[: 2 + number % 5]]} for number in range(40)]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    whole = prepared(section(path, max_length=10_000), tiny, tmp_path)
    lengths = dict(zip(SampleSet.open(whole.arrow).rows.tolist(), SampleSet.open(whole.arrow).lengths.tolist(), strict=True))
    kept = prepared(replace(section(path, max_length=90, overlong=overlong), num_proc=processes), tiny, tmp_path / str(processes))
    assert kept.tokens_read == kept.tokens - kept.repeated_tokens + kept.dropped_tokens == whole.tokens
    samples = SampleSet.open(kept.arrow)
    assert (kept.samples, kept.tokens, samples.lengths.max() <= 90) == (len(samples), samples.lengths.sum(), True)
    told = {row["row"]: row for row in outcomes(kept)}
    for number, length in lengths.items():
        own = samples.lengths[samples.rows == number].tolist()
        line = told.get(number, {"tokens": length, "samples": 1, "dropped_tokens": 0, "repeated_tokens": 0})
        assert (line["tokens"], line["samples"]) == (length, len(own))
        assert sum(own) - line["repeated_tokens"] + line["dropped_tokens"] == length
    assert {row["outcome"] for row in told.values()} <= {"drop": {"dropped"}, "split": {"split", "dropped"}}.get(overlong, {"truncated", "dropped"})
    assert (kept.split > 0, kept.truncated > 0, kept.repeated_tokens > 0) == (overlong == "split", overlong.startswith("truncate"), overlong == "split")
    assert (0 < kept.lost_ends <= kept.truncated) if overlong == "truncate_right" else kept.lost_ends == 0


def test_several_processes_make_the_same_cache(tiny: ModelSource, tmp_path: Path) -> None:
    data = section("builtin:extraction/eval")
    one, two = (prepared(replace(data, num_proc=processes), tiny, tmp_path / str(processes)) for processes in (1, 2))
    assert (one.fingerprint, one.samples, one.tokens, Path(one.arrow).name) == (two.fingerprint, 100, two.tokens, Path(two.arrow).name)


def test_equal_samples_are_counted(tiny: ModelSource, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [PAIR, PAIR, {"prompt": "c", "completion": "d"}, PAIR])
    assert prepared(pairs(path), tiny, tmp_path).duplicates == 2


def test_a_text_is_split_in_blocks(tiny: ModelSource, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{"text": "x" * 300}, {"text": "short"}])
    kept = prepared(replace(section(path, form="text"), max_length=100, overlong="split"), tiny, tmp_path)
    assert (kept.split, kept.samples >= 4, kept.dropped) == (1, True, {})
    assert kept.tokens_read == prepared(replace(section(path, form="text"), max_length=1000), tiny, tmp_path).tokens
