"""Rows of real files, from any position on and at any positions; what a stream is made of; samples on the fly."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from ftcore.data.prepared import ModelSource, Prepared
from ftcore.data.reading.rows import DataFile
from ftcore.data.stream_source import StreamSource
from ftcore.spec.data_sections import DataSection, TrainingSet
from ftcore.spec.errors import DataError
from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.stream.plan import plan_stream
from ftcore.stream.prepare import prepare_stream
from ftcore.stream.rows import FileRows, line_of
from ftcore.stream.samples import SampleMaker
from ftcore.stream.state import Place
from tests.ranks.small_model import save_small_llama
from tests.ranks.specs import make_spec

ROWS = [{"text": f"row {number} é" + "\u2028" * (number % 3), "note": "x" * (number % 40)} for number in range(90)]


def files_of(folder: Path) -> dict[str, Path]:
    """The same rows in every kind of file; the lines with a byte order mark, CRLF, and blank lines here and there."""
    lines = [json.dumps(row, ensure_ascii=False) + ("\r\n\n \n" if number % 7 == 0 else "\n") for number, row in enumerate(ROWS)]
    text = ("\ufeff\n" + "".join(lines)).encode()
    table = io.StringIO()
    writer = csv.DictWriter(table, ["text", "note"])
    writer.writeheader()
    writer.writerows(ROWS)
    content = {"a.jsonl": text, "b.jsonl.gz": gzip.compress(text), "c.jsonl.bz2": bz2.compress(text), "d.json": json.dumps(ROWS, indent=1).encode()}
    content["e.csv"] = table.getvalue().encode()
    for name, data in content.items():
        (folder / name).write_bytes(data)
    rows = pa.Table.from_pylist(ROWS)
    pa.parquet.write_table(rows, folder / "f.parquet", row_group_size=13)
    with pa.ipc.new_file(folder / "g.arrow", rows.schema) as sink:
        sink.write_table(rows, max_chunksize=17)
    return {path.name: path for path in sorted(folder.iterdir())}


def model_in(folder: Path, **config: Any) -> ModelSource:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return ModelSource(path=str(folder), revision="", digest="", name="", trust_remote_code=False)


def stream(tmp_path: Path, path: str, **data: Any) -> StreamSource:
    section = DataSection(train=TrainingSet(path=path), streaming=True, **{"lanes": 4, **data})
    return prepare_stream(section, model_in(tmp_path / "model"), tmp_path / "cache")


@pytest.mark.parametrize("index", range(7))
def test_every_kind_of_file_goes_on_anywhere(index: int, tmp_path: Path) -> None:
    """E06: positions are where reading goes on, whatever stands between two rows."""
    (tmp_path / "files").mkdir()
    path = list(files_of(tmp_path / "files").values())[index]
    source = stream(tmp_path, str(path))
    reader = FileRows([file.data_file for file in source.files])
    read = [(Place(0, position), row.value) for shard in source.shards for position, _, row in reader.read(0, shard.start, shard.end)]  # type: ignore[union-attr]
    assert [value for _, value in read] == ROWS
    assert len(source.shards) == (4 if path.name in ("a.jsonl", "f.parquet") else 1)
    assert source.rows == (90 if path.name == "f.parquet" else None)
    for start in (1, 45, 89):
        position = read[start][0].position
        assert [row.value for _, _, row in reader.read(0, position, None)] == ROWS[start:]  # type: ignore[union-attr]
    places = [read[number][0] for number in (70, 3, 0, 89, 3, 13, 26)]
    assert [row.value for row in reader.pick(places)] == [ROWS[number] for number in (70, 3, 0, 89, 3, 13, 26)]  # type: ignore[union-attr]
    with pytest.raises(DataError, match=r"no row at position|has changed|was the file cut"):
        reader.pick([Place(0, read[89][0].position + (1 << 30))])


@pytest.mark.parametrize("change", ["longer", "other", "before"])
def test_a_file_that_changes_while_it_is_read_stops(tmp_path: Path, change: str) -> None:
    """Its rows would be trained on as those that the cursor's fingerprint is of."""
    path = tmp_path / "a.jsonl"
    text = "".join(json.dumps({"text": f"{number:04d}"}) + "\n" for number in range(600))
    path.write_text(text)
    files = [file.data_file for file in stream(tmp_path, str(path), lanes=1).files]
    if change == "before":
        path.write_text(text + '{"text": "more"}\n')
    reader = FileRows(files)
    rows = reader.read(0, 0, None)
    if change != "before":
        next(rows)
        path.write_text(text + '{"text": "more"}\n' if change == "longer" else text.replace("5", "6"))
    for each in (rows, reader.read(0, 0, None)):
        with pytest.raises(DataError, match="has changed since the run began"):
            list(each)


def test_the_line_of_a_row_is_counted_for_a_message(tmp_path: Path) -> None:
    path = files_of(tmp_path)["a.jsonl"]
    file = DataFile(path=path, name="a.jsonl", kind="jsonl", size=path.stat().st_size)
    positions = [position for position, _, _ in FileRows([file]).read(0, 0, None)]
    text = path.read_text(encoding="utf-8-sig").split("\n")
    for number in (0, 1, 8, 50):
        assert json.loads(text[(line_of(file, positions[number]) or 0) - 1]) == ROWS[number]
    assert line_of(DataFile(path=path, name="a", kind="csv", size=1), 5) is None


def test_a_stream_knows_its_files_and_formats(tmp_path: Path) -> None:
    """D06: what can be known beforehand is; shards follow from sizes and lanes alone."""
    for name, count in {"a.jsonl": 400, "b.jsonl": 40}.items():
        (tmp_path / name).write_text("".join(json.dumps({"prompt": f"{row} + 1 =", "completion": f" {row + 1}"}) + "\n" for row in range(count)))
    source = stream(tmp_path, str(tmp_path / "*.jsonl"), lanes=8)
    assert source.sets[0].dataset.format == "prompt_completion"
    assert Counter(shard.file for shard in source.shards) == {0: 8, 1: 1}
    again = stream(tmp_path, str(tmp_path / "*.jsonl"), lanes=8, on_bad_row="drop")
    assert again.fingerprint == source.fingerprint
    changes: list[dict[str, Any]] = [
        {"lanes": 4},
        {"shuffle_buffer": 9},
        {"max_length": 9},
        {"overlong": "split"},
        {"loss_on": "all"},
        {"chat_template": "chatml"},
    ]
    others = [stream(tmp_path, str(tmp_path / "*.jsonl"), **{"lanes": 8, **change}).fingerprint for change in changes]
    assert len({source.fingerprint, *others}) == 1 + len(others)
    (tmp_path / "b.jsonl").write_text((tmp_path / "b.jsonl").read_text().replace("7", "8", 1))
    assert stream(tmp_path, str(tmp_path / "*.jsonl"), lanes=8).fingerprint != source.fingerprint


def test_mistakes_of_all_sets_come_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "bad.jsonl").write_text("{\n" * 30)
    sets = {name: TrainingSet(path=str(tmp_path / f"{name}.jsonl")) for name in ("empty", "bad", "none")}
    with pytest.raises(DataError) as raised:
        prepare_stream(DataSection(train_sets=sets, streaming=True), model_in(tmp_path / "model"), tmp_path / "cache")
    whats = " | ".join(problem.what for problem in raised.value.problems)
    assert "no rows: all files are empty" in whats and "not JSON" in whats and "no such file" in whats


def test_the_plan_says_what_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}\n' * 5))
    (tmp_path / "b.jsonl").write_text('{"text": "x"}\n' * 2)
    source = stream(tmp_path, str(tmp_path / "*.jsonl*"), lanes=6)
    prepared = Prepared(train={}, eval={}, model=model_in(tmp_path / "model", hidden_size=64), stream=source)
    plans = {}
    for world_size in (1, 4, 8):
        resolved = ResolvedSpec(spec=make_spec(2), hosts=(Host(name="localhost", slots=world_size),), sources={}, cache_dir=str(tmp_path))
        plans[world_size] = plan_stream(resolved, source, {}, prepared)
    text = plans[4].render()
    assert "samples and tokens are counted while training" in text and "not known beforehand" in text and "an update:                    8 samples" in text
    assert any("3 of 6 lanes have nothing to read" in note for note in plans[1].notes) and any("compressed" in note for note in plans[1].notes)
    assert any("6 lanes don't spread evenly over 4 ranks" in note for note in plans[4].notes)
    assert any("2 of 8 ranks have no lane" in note for note in plans[8].notes)
    assert json.loads(plans[1].to_json())["rows"] is None


def maker(tmp_path: Path, rows: list[dict[str, Any]], config: dict[str, Any], **data: Any) -> tuple[SampleMaker, list[tuple[Place, Any]]]:
    """A maker of samples with the small model's tokenizer, and the rows of a file with their places."""
    folder = tmp_path / "model"
    model = save_small_llama(folder)
    (folder / "config.json").write_text(json.dumps({**json.loads((folder / "config.json").read_text()), **config}))
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = DataSection(train=TrainingSet(path=str(path)), streaming=True, lanes=1, **data)
    source = prepare_stream(section, model, tmp_path / "cache")
    read = [(Place(0, position), row) for position, _, row in FileRows([file.data_file for file in source.files]).read(0, 0, None)]
    return SampleMaker(source, section, model), read


def token_row(length: int, *, learned: int = 2, highest: int = 5) -> dict[str, Any]:
    ids = [highest, *itertools.repeat(4, length - 1)]
    return {"input_ids": ids, "labels": [-100] * (length - learned) + ids[length - learned :]}


def test_rows_become_samples_by_the_rules_of_preparation(tmp_path: Path) -> None:
    """D08, D10: dropped, cut, bad, and what the model has no room for."""
    rows = [token_row(6), token_row(30), token_row(6, learned=0), {"input_ids": [1, 2], "labels": [1]}, token_row(12)]
    make, read = maker(tmp_path, rows, {}, max_length=10, on_bad_row="drop", overlong="truncate_left")
    made = make(read)
    assert [len(each.samples) for each in made] == [1, 1, 0, 0, 1]
    assert [dict(each.dropped) for each in made] == [{}, {}, {"no_supervised_tokens": 1}, {"bad_row": 1}, {}]
    assert [sample.truncated for each in made for sample in each.samples] == [False, True, True]
    assert [len(sample.sample.ids) for each in made for sample in each.samples] == [6, 10, 10]
    assert len({sample.id for each in made for sample in each.samples}) == 3
    sample = made[0].samples[0]
    assert (sample.supervised, sample.weight, sample.set) == (2, 2.0, 0)


def test_what_stops_a_run_says_where(tmp_path: Path) -> None:
    rows = [token_row(6), token_row(30), {"input_ids": [1, 2], "labels": [1]}, token_row(8, highest=96)]
    make, read = maker(tmp_path, rows, {"max_position_embeddings": 7, "vocab_size": 90}, max_length=10, overlong="error")
    problems = [[(problem.what, problem.line, problem.file.rpartition("/")[2]) for problem in each.error.problems] if each.error else [] for each in make(read)]
    assert problems[0] == [] and problems[1] == [("30 tokens, data.max_length is 10", 2, "rows.jsonl")] and problems[2][0][1] == 3
    assert [what for what, _, _ in problems[3]] == [
        "a sample of 8 tokens, and the model has 7 positions",
        "the tokenizer makes token id 96, and the model's vocab_size is 90",
    ]
