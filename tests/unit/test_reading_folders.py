"""From a path to its files: folders with splits as on the hub, patterns, what save_to_disk wrote, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcore.data.reading.digest import source_digest
from ftcore.data.reading.reader import read_chunks
from ftcore.data.reading.rows import Source
from ftcore.data.reading.splits import KEYWORDS, by_split
from ftcore.spec import events
from ftcore.spec.errors import DataError, Problem
from tests.unit.read_files import outcome, read, source_of

ROW = b'{"a": 1}\n'


def tree(folder: Path, *names: str) -> Path:
    """A folder with these files, one row each."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a\n1\n" if path.suffix == ".csv" else ROW)
    return folder


def taken(path: Path | str, **options: Any) -> list[str]:
    """Names of a source's files inside its folder."""
    return [os.path.relpath(file.path, path) for file in source_of(path, **options).files]


def problem_of(path: Path | str, **options: Any) -> Problem:
    with pytest.raises(DataError) as caught:
        source_of(path, **options)
    (problem,) = caught.value.problems
    assert problem.fix
    return problem


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """A function that gives the notes told since the test began."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    monkeypatch.setenv(events.EVENTS_FD, str(writer))
    monkeypatch.delenv("RANK", raising=False)
    with os.fdopen(reader) as lines:
        yield lambda: [event["text"] for line in lines if (event := json.loads(line))["event"] == "note"]
    os.close(writer)


def test_all_files_of_a_folder_in_order(tmp_path: Path) -> None:
    tree(tmp_path, "b.jsonl", "a/2.jsonl.gz", "a/1.json", "README.md", "a/dataset_info.json", ".git/x.jsonl", "__pycache__/y.jsonl", ".z.jsonl")
    assert taken(tmp_path) == ["a/1.json", "a/2.jsonl.gz", "b.jsonl"]
    assert taken(tmp_path, purpose="eval") == taken(tmp_path)
    assert [row.file for row in read(tmp_path)] == [str(tmp_path / name) for name in taken(tmp_path)]


@pytest.mark.parametrize(
    ("names", "purpose", "split", "expected"),
    [
        (["train.jsonl", "test.jsonl", "other.jsonl"], "train", "", ["train.jsonl"]),
        (["train.jsonl", "test.jsonl"], "eval", "", ["test.jsonl"]),
        (["train.jsonl", "test.jsonl", "dev.jsonl"], "eval", "", ["dev.jsonl"]),
        (["train.jsonl", "test.jsonl", "dev.jsonl"], "eval", "test", ["test.jsonl"]),
        (["my_train_v2.jsonl", "my-eval.jsonl"], "train", "", ["my_train_v2.jsonl"]),
        (["train/1.jsonl", "train/2.jsonl", "validation/test.jsonl"], "eval", "", ["validation/test.jsonl"]),
        (["data/train_sft-00000-of-00001.jsonl", "data/x-00000-of-00001.jsonl"], "train", "train_sft", ["data/train_sft-00000-of-00001.jsonl"]),
        (["training_data.jsonl", "x.jsonl"], "train", "train", ["training_data.jsonl"]),
        (["trainer.jsonl", "tester.jsonl"], "train", "", ["tester.jsonl", "trainer.jsonl"]),
        (["a.jsonl"], "train", "train", ["a.jsonl"]),
    ],
)
def test_splits_by_names(tmp_path: Path, names: list[str], purpose: str, split: str, expected: list[str]) -> None:
    assert taken(tree(tmp_path, *names), purpose=purpose, split=split) == expected


def test_what_is_left_out_is_told(tmp_path: Path, notes: Callable[[], list[str]]) -> None:
    taken(tree(tmp_path, "train.jsonl", "test.jsonl", "other.jsonl", "x.pdf", "y.py"))
    source_of(f"{tmp_path}/*")
    (tmp_path / "empty.jsonl").touch()
    list(read_chunks(source_of(f"{tmp_path}/*.jsonl")))
    pq.write_table(pa.table({"a": [{"b": 1, "c": None}, {"b": None, "c": 2}]}), tmp_path / "a.parquet")
    list(read_chunks(source_of(tmp_path / "a.parquet")))
    assert notes() == [
        f"{tmp_path}: left out: 2 files that are no data (x.pdf, y.py), 1 files of no split",
        f"{tmp_path}: the split train is taken, 1 of 3 files",
        f"{tmp_path}/*: left out: 2 files that are no data",
        f"{tmp_path}/empty.jsonl has no rows",
        f"{tmp_path}/a.parquet: 2 nulls inside structs are left out: there they can't be told from keys that a row doesn't have",
    ]


NAMES = st.lists(
    st.builds(
        lambda folders, stem, suffix: "/".join([*folders, stem + suffix]),
        st.lists(st.sampled_from(["data", "train", "my_test", "dev set", "valid2", "evaluate", "x"]), max_size=2),
        st.sampled_from(["train", "test-1", "x_val", "training", "a", "b.train", "latest", "train_sft-00000-of-00002", "test-00001-of-00002", "EVAL"]),
        st.sampled_from([".jsonl", ".json", ".jsonl.gz"]),
    ),
    min_size=1,
    max_size=6,
    unique=True,
)


@settings(max_examples=40)
@given(names=NAMES)
def test_splits_are_those_of_the_hubs_own_library(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    from datasets import data_files

    folder = tree(tmp_path_factory.mktemp("splits"), *names)
    patterns = data_files.get_data_patterns(str(folder))
    expected = {str(split): {path for pattern in each for path in resolved(folder, pattern)} for split, each in patterns.items()}
    assert {split: set(each) for split, each in by_split(sorted(names)).items()} == expected


def resolved(folder: Path, pattern: str) -> list[str]:
    from datasets import data_files

    try:
        return [os.path.relpath(path, folder) for path in data_files.resolve_pattern(pattern, str(folder))]
    except FileNotFoundError:
        return []


def test_every_word_of_a_split_is_known() -> None:
    for split, words in KEYWORDS.items():
        assert by_split([f"{word}.jsonl" for word in words]) == {split: [f"{word}.jsonl" for word in words]}


def test_a_readme_names_configurations(tmp_path: Path) -> None:
    tree(tmp_path, "one/tr.jsonl", "one/te.jsonl", "two/a.csv")
    head = [{"config_name": "one", "data_files": [{"split": "train", "path": "one/tr*"}, {"split": "test", "path": "one/te*"}]}]
    readme = tmp_path / "README.md"
    readme.write_text(f"---\n{json.dumps({'configs': head})}\n---\nText\n")
    assert taken(tmp_path) == ["one/tr.jsonl"]
    assert taken(tmp_path, purpose="eval", name="one") == ["one/te.jsonl"]
    head.append({"config_name": "two", "data_files": "two/*.csv"})
    readme.write_text(f"---\n{json.dumps({'configs': head})}\n---\nText\n")
    assert taken(tmp_path, name="two") == ["two/a.csv"]
    assert "several configurations and no default" in problem_of(tmp_path).what
    assert problem_of(tmp_path, name="three").fix == "name one of: one, two"
    assert problem_of(tmp_path, name="one", split="dev").fix == "its splits are: train, test"
    readme.write_text(f"---\n{json.dumps({'configs': [{'config_name': 'one', 'data_files': 'none/*'}]})}\n---\n")
    assert "can't be told from its README" in problem_of(tmp_path).what
    for text in ("---\n: [\n---\n", "---\nlicense: mit\n---\n", "no head", "---\n"):
        readme.write_text(text)
        assert taken(tmp_path / "one") == ["te.jsonl", "tr.jsonl"]
        assert "names no configurations" in problem_of(tmp_path, name="one").what


def test_what_save_to_disk_wrote(tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    rows = [{"a": index, "m": [{"role": "user", "content": str(index)}]} for index in range(5)]
    whole = datasets.Dataset.from_list(rows)
    whole.save_to_disk(str(tmp_path / "one"), num_shards=2)
    datasets.DatasetDict({"train": whole, "test": whole.select([3, 1])}).save_to_disk(str(tmp_path / "several"))
    assert [outcome(row) for row in read(tmp_path / "one")] == rows
    assert [outcome(row) for row in read(tmp_path / "several")] == rows
    assert [outcome(row) for row in read(tmp_path / "several", purpose="eval")] == [rows[3], rows[1]]
    assert problem_of(tmp_path / "several", split="dev").fix == "its splits are: train, test"
    assert "without splits" in problem_of(tmp_path / "one", split="train").what
    state = tmp_path / "one" / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"_indices_data_files": [{"filename": "indices.arrow"}]}))
    assert "with an index" in problem_of(tmp_path / "one").what
    state.write_text("{")
    assert "can't read" in problem_of(tmp_path / "one").what


def test_patterns(tmp_path: Path) -> None:
    tree(tmp_path, "a1.jsonl", "a2.jsonl", "b/c/a3.jsonl", "b/x.txt", "odd[1].jsonl")
    assert [file.name for file in source_of(f"{tmp_path}/a*.jsonl").files] == [str(tmp_path / "a1.jsonl"), str(tmp_path / "a2.jsonl")]
    assert len(source_of(f"{tmp_path}/**/*.jsonl").files) == 4
    assert len(source_of(f"{tmp_path}/a[12].jsonl").files) == 2
    assert len(source_of(tmp_path / "odd[1].jsonl").files) == 1  # a file of that name wins
    problem = problem_of(f"{tmp_path}/b/**/b*.jsonl")
    assert "matches no data file; nearest: " in problem.what
    assert str(tmp_path / "b/c/a3.jsonl") in problem.what
    assert "1 files that are no data" in problem_of(f"{tmp_path}/b/*.txt").what
    assert problem_of("/none-of-this/*.jsonl").what == "the pattern /none-of-this/*.jsonl matches no data file"


def test_missing_files_name_the_nearest(tmp_path: Path) -> None:
    tree(tmp_path, "gsm8k_train.jsonl", "other.csv")
    assert f"no such file: {tmp_path}/gsm8k_trian.jsonl; nearest: {tmp_path}/gsm8k_train.jsonl" in problem_of(tmp_path / "gsm8k_trian.jsonl").what
    (tmp_path / "e").mkdir()
    assert f"{tmp_path}/e has no data files" in problem_of(tmp_path / "e" / "x.jsonl").what
    (tmp_path / "link.jsonl").symlink_to("/nowhere")
    assert "is a link to nothing" in problem_of(tmp_path / "link.jsonl").what


@pytest.mark.parametrize(
    ("address", "fix"),
    [
        ("https://huggingface.co/datasets/openai/gsm8k/tree/main", "write openai/gsm8k for this data set of the hub"),
        ("hf://datasets/openai/gsm8k", "write openai/gsm8k for this data set of the hub"),
        ("https://example.org/rows.jsonl", "download it and name the file; a hub id reads OWNER/NAME"),
        ("s3://bucket/rows.jsonl", "download it and name the file; a hub id reads OWNER/NAME"),
    ],
)
def test_addresses_are_not_read(address: str, fix: str) -> None:
    problem = problem_of(address)
    assert problem.fix == fix
    assert address in problem.what


def test_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tree(tmp_path, "rows/a.jsonl")))
    assert [file.path for file in source_of("~/rows/*.jsonl").files] == [tmp_path / "rows/a.jsonl"]
    for path in ("~/rows/a.jsonl", "~/rows"):
        assert [outcome(row) for row in read(path)] == [{"a": 1}]


def test_refusals(tmp_path: Path) -> None:
    tree(tmp_path, "mixed/a.jsonl", "mixed/b.csv", "none/x.pdf", "a.jsonl", "notes.txt")
    (tmp_path / "notes.txt").write_text("Plain words.\n")
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert "several kinds: 1 JSON, 1 csv" in problem_of(tmp_path / "mixed").what
    assert "several kinds" in problem_of(f"{tmp_path}/mixed/*").what
    assert "has no data files; it holds x.pdf" in problem_of(tmp_path / "none").what
    assert "no file and no folder" in problem_of(tmp_path / "pipe.jsonl").what
    assert "holds no JSON" in problem_of(tmp_path / "notes.txt").what
    for option in ("name", "split", "revision"):
        assert problem_of(tmp_path / "a.jsonl", **{option: "x"}).where == f"data.train.{option}"
    assert "no split train" in problem_of(tree(tmp_path / "t", "test.jsonl", "x.jsonl")).what


def test_unreadable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "a.jsonl", "b")
    refused = PermissionError(13, "Permission denied")

    def refuse(*_: object, **__: object) -> None:
        raise refused

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        assert "can't read" in problem_of(tmp_path / "b").what
        with pytest.raises(DataError, match="can't be read: Permission denied"):
            read(tmp_path / "a.jsonl")
    folder = tree(tmp_path / "links", "a.jsonl")
    (folder / "gone.jsonl").symlink_to("/nowhere")
    assert "can't read" in problem_of(folder).what


def test_names_without_a_known_ending(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "rows")
    assert [outcome(row) for row in read(tmp_path / "rows")] == [{"a": 1}]
    assert [outcome(row) for row in read(tree(tmp_path, "lines") / "lines")] == [{"a": 1}]


def test_folders_that_link_to_each_other(tmp_path: Path) -> None:
    tree(tmp_path, "a/x.jsonl")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert taken(tmp_path) == ["a/x.jsonl"]


def test_rows_that_are_built_in() -> None:
    assert len(read("builtin:extraction/eval")) == 100
    assert "no data set is built in" in problem_of("builtin:nope").what


def test_files_that_are_all_empty(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match="all 2 files are empty"):
        read(tmp_path)


def test_digest_is_of_bytes_order_and_kind(tmp_path: Path) -> None:
    asked: list[Path] = []

    def remember(path: Path) -> str:
        asked.append(path)
        return path.read_text()

    def digest(source: Source) -> str:
        return source_digest(source, remember)

    tree(tmp_path, "one/a.jsonl", "two/b.jsonl", "two/c.jsonl", "three/a.json")
    (tmp_path / "two" / "c.jsonl").write_bytes(b'{"a": 2}\n')
    one, moved, two = source_of(tmp_path / "one"), source_of(tmp_path / "two/b.jsonl"), source_of(tmp_path / "two")
    assert digest(one) == digest(moved)
    assert len({digest(one), digest(two), digest(Source(files=two.files[::-1])), digest(source_of(tmp_path / "three"))}) == 4
    assert asked[0] == tmp_path / "one/a.jsonl"
    assert digest(source_of("builtin:extraction/eval")) != digest(source_of("builtin:extraction/train"))
