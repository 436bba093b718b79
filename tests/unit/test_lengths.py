from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcore.data.build import describe
from ftcore.data.cache import Counts, write_samples
from ftcore.data.lengths import note_lengths
from ftcore.spec.lengths import file_state, length_bin, lengths_path, read_lengths
from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.data_guess import BUILTIN_ROWS
from launcher.memory.lengths import data_lengths, joined
from launcher.simulation.dealt import deal_by_lengths
from tests.unit.planned_runs import llama, run


def planned(folder: Path, text: str = "x" * 1000) -> ResolvedSpec:
    file = folder / "train.jsonl"
    file.write_text(text)
    resolved = run()
    data = dataclasses.replace(resolved.spec.data, train=dataclasses.replace(resolved.spec.data.train, path=str(file)))
    return dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, data=data), cache_dir=str(folder / "cache"))


def prepare(resolved: ResolvedSpec, lengths: list[int]) -> None:
    arrow = Path(resolved.cache_dir) / "data" / "x.arrow"
    arrow.parent.mkdir(parents=True, exist_ok=True)
    ids = [np.arange(length, dtype=np.int32) for length in lengths]
    supervised = sum(length // 2 for length in lengths)
    counts = Counts(rows=len(lengths) + 1, tokens=sum(lengths), supervised_tokens=supervised, dropped={"overlong": 1})
    write_samples(arrow, ids, [((length - length // 2, length),) for length in lengths], list(range(1, len(lengths) + 1)), counts)
    spec = resolved.spec
    note_lengths(describe(arrow), spec.data.train, spec.data, spec.model, Path(resolved.cache_dir))


def test_counted_lengths_are_found_again(tmp_path):
    resolved = planned(tmp_path)
    prepare(resolved, [10, 10, 100, 1000])
    found = data_lengths(resolved, resolved.spec.data.train)
    assert (found.samples, found.tokens, found.supervised_tokens, found.longest) == (4, 1120, 560, 1000)
    assert found.squares == 100 + 100 + 10_000 + 1_000_000
    assert found.seen == pytest.approx(found.squares / 1120) and found.supervised_share == 0.5
    assert not found.is_assumed and found.origin == "counted when the data was last prepared"
    assert sum(found.histogram.values()) == 4
    assert found.bins_over(1500) == 0.25 and found.bins_over(4000) == 0
    # Another length, template or model gives other samples.
    other = dataclasses.replace(resolved.spec.data, max_length=512)
    elsewhere = dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, data=other))
    assert data_lengths(elsewhere, other.train).is_assumed


@pytest.mark.parametrize("changed", ["t.jinja", "model/tokenizer.json", "model/additional_chat_templates/tool_use.jinja", "model/config.json"])
def test_counts_of_another_template_or_tokenizer_are_not_taken(changed, tmp_path):
    # B15: a plan doesn't go by samples that the next preparation makes anew.
    for name in ("t.jinja", "model/tokenizer.json", "model/config.json", "model/additional_chat_templates/tool_use.jinja"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    plain = planned(tmp_path)
    data = dataclasses.replace(plain.spec.data, chat_template=str(tmp_path / "t.jinja"))
    model = dataclasses.replace(plain.spec.model, model_name_or_path=str(tmp_path / "model"))
    resolved = dataclasses.replace(plain, spec=dataclasses.replace(plain.spec, data=data, model=model))
    prepare(resolved, [10, 20])
    assert not data_lengths(resolved, data.train).is_assumed
    (tmp_path / changed).write_text("other text")
    assert data_lengths(resolved, data.train).is_assumed is (changed != "model/config.json")


def test_a_file_that_has_changed_is_scaled(tmp_path):
    resolved = planned(tmp_path)
    prepare(resolved, [100] * 10)
    Path(resolved.spec.data.train.path).write_text("x" * 3000)
    found = data_lengths(resolved, resolved.spec.data.train)
    assert found.samples == 30 and found.tokens == 3000 and found.is_assumed and "changed since" in found.origin
    os.remove(resolved.spec.data.train.path)
    assert data_lengths(resolved, resolved.spec.data.train).samples == 10


def test_a_file_that_has_shrunk_to_a_few_rows_has_no_histogram(tmp_path):
    resolved = planned(tmp_path)
    prepare(resolved, [10 * number for number in range(1, 60)])
    path = Path(resolved.spec.data.train.path)
    path.write_bytes(path.read_bytes()[:20])
    found = data_lengths(resolved, resolved.spec.data.train)
    # Of each length less than half a sample is left: updates are made up of mean ones.
    assert found.histogram == {} and found.samples >= 1
    assert deal_by_lengths(resolved, llama(layers=2), found).tokens > 0
    assert joined({"a": (found, 1.0), "b": (dataclasses.replace(found, histogram={10: 1, 20: 1}), 0.1)}).histogram == {}


@pytest.mark.parametrize("content", ["{", "[]", '{"version": 99}', '{"version": 1, "rows": "many"}'])
def test_damaged_counts_are_passed_over(tmp_path, content):
    resolved = planned(tmp_path)
    data = resolved.spec.data
    path = lengths_path(Path(resolved.cache_dir), data.train, data, resolved.spec.model)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert read_lengths(path) is None
    assert data_lengths(resolved, data.train).is_assumed


def test_a_cache_that_cannot_be_written_to_goes_without(tmp_path):
    resolved = planned(tmp_path)
    prepare(resolved, [5])
    lengths = Path(resolved.cache_dir) / "lengths"
    for path in lengths.iterdir():
        path.unlink()
    lengths.rmdir()
    lengths.write_text("a file")
    prepare(resolved, [5])
    assert data_lengths(resolved, resolved.spec.data.train).is_assumed


def test_an_unprepared_file_is_judged_by_its_beginning(tmp_path):
    row = json.dumps({"messages": [{"role": "user", "content": "word " * 840}]}) + "\n"
    found = data_lengths(planned(tmp_path, row * 300), planned(tmp_path, row * 300).spec.data.train)
    assert found.samples == pytest.approx(300, rel=0.05) and 800 < found.mean < 1000 and found.is_assumed
    assert "assumed, since the data was not prepared yet" in found.origin
    few = planned(tmp_path, row * 3)
    assert data_lengths(few, few.spec.data.train).samples == 3
    long = planned(tmp_path, row.replace("word ", "word " * 9) * 3)
    assert data_lengths(long, long.spec.data.train).mean == long.spec.data.max_length


@pytest.mark.parametrize(
    ("rows", "data_set", "share"),
    [
        ([{"messages": [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "d"}]}], {}, 0.25),
        ([{"messages": [{"role": "user", "content": "abc"}]}], {}, 0.4),
        ([{"messages": None}, {"messages": [1, {"role": "assistant", "content": None}]}, [], 3], {}, 0.4),
        ([{"q": "ab", "completion": "cdefgh"}], {"format": "prompt_completion", "columns": {"prompt": "q"}}, 0.75),
        ([{"q": "ab"}], {"format": "prompt_completion"}, 0.4),
    ],
)
def test_answers_of_an_unprepared_file_are_told_by_its_texts(tmp_path, rows, data_set, share):
    resolved = planned(tmp_path, "{broken\n" + "".join(json.dumps(row) + "\n" for row in rows))
    found = data_lengths(resolved, dataclasses.replace(resolved.spec.data.train, **data_set))
    assert found.supervised_share == pytest.approx(share) and f"{share:.0%} of them supervised" in found.origin


def test_data_without_a_file(tmp_path):
    resolved = planned(tmp_path)
    missing = dataclasses.replace(resolved.spec.data.train, path=str(tmp_path / "gone.jsonl"))
    assert data_lengths(resolved, missing).samples == 1
    builtin = dataclasses.replace(missing, path="builtin:extraction/train")
    assert data_lengths(resolved, builtin).samples == BUILTIN_ROWS["builtin:extraction/train"]
    empty = planned(tmp_path, "")
    assert data_lengths(empty, empty.spec.data.train).tokens > 0


@given(st.integers(1, 10**7))
def test_bins_hold_what_they_bound(length):
    bound = length_bin(length)
    assert length <= bound <= max(2, 1.19 * length + 1)
    assert length_bin(bound) == bound


def test_the_state_of_folders_and_patterns_is_that_of_their_files(tmp_path):
    folder = tmp_path / "rows" / "deep"
    folder.mkdir(parents=True)
    for name, text in (("a.jsonl", "12"), ("b.jsonl", "345")):
        (folder / name).write_text(text)
        os.utime(folder / name, ns=(len(text), len(text)))
    assert file_state(str(folder / "a.jsonl")) == (2, 2)
    assert file_state(str(tmp_path / "rows")) == file_state(str(tmp_path / "**" / "*.jsonl")) == (5, 3)
    assert file_state("owner/name") == file_state(str(folder / "none*")) == (0, 0)
