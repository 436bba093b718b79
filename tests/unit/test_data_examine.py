"""Reports and single rows through the core, on the handed files: what a set comes to, whether it can be used or not. C09, D10."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftcore.data.formats.record_kinds import TextPair
from ftcore.data.reading.rows import Row
from ftcore.data_report.facts import Report, SetReport
from ftcore.data_report.report import asked_share, make_report
from ftcore.data_report.show import ShownRow, show_row
from ftcore.data_report.template_facts import template_facts
from ftcore.spec.data_report import DataRequest
from ftcore.spec.errors import DataError, SpecError
from ftcore.spec.sections import TrainingSet
from launcher.resolve import Options, read_and_resolve
from tests.unit.data_specs import TINY, chat, spec

CASES = Path(__file__).parents[1] / "cases" / "data"
SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _in_a_folder(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test works in a folder of its own, and all of them share one model."""
    monkeypatch.setenv("FTLAUNCH_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)


def report(*sets: str, spec_path: Path | None = None, samples: int = 1) -> Report:
    resolved = read_and_resolve(Options(spec_path=spec_path, sets=sets)).resolved
    return make_report(resolved, DataRequest(origin="s", output=str(Path.cwd() / "out"), listed=3, samples=samples), Path.cwd() / "scratch")


def train_of(path: Path | str, *sets: str) -> SetReport:
    return report(*TINY, f"data.train.path={path}", *sets).sets["train"]


def show(row: int, *sets: str, name: str = "", spec_path: Path | None = None) -> ShownRow:
    return show_row(read_and_resolve(Options(spec_path=spec_path, sets=sets)).resolved, DataRequest(origin="s", row=row, set_name=name))


def test_prompts_that_touch_their_completions_are_told() -> None:
    def note(*pairs: tuple[str, str]) -> str:
        rows = [Row(number=number, file="f", line=number, value={}) for number in range(1, len(pairs) + 1)]
        records = [TextPair(row=row, prompt=prompt, completion=completion) for row, (prompt, completion) in zip(rows, pairs, strict=True)]
        facts = template_facts(None, "", "assistant", records)
        assert facts is not None
        return facts.note

    touching = note(("Q:", " a"), ("2 + 2?", "4"), ("A:", "5"))
    assert touching.startswith("in 2 of the first 3 rows no white space stands between prompt and completion (row 2: '2 + 2?|4')")
    assert note(("2?", "4")).startswith("in this row")
    # White space on either side, a control token, a script without spaces, a completion that begins with a mark, an empty one.
    assert not note(("Q: ", "a"), ("Q:\n", "a"), ("Q:", " a"), ("[/INST]", "a"), ("<|end|>", "a"), ("何？", "四"), ("a", ", b"), ("", "a"), ("a", ""))


def test_one_of_two_rows_is_left() -> None:
    # C09: counted and named, whatever the rule is called.
    path = CASES / "long_prompt_short_answer.jsonl"
    dropped = train_of(path, "data.max_length=64")
    assert (dropped.rows, dropped.samples, dropped.dropped, dropped.refusals) == (2, 1, {"overlong": 1}, [])
    cut = train_of(path, "data.max_length=64", "data.overlong=truncate_right")
    assert (cut.rows, cut.samples, cut.dropped, cut.without_targets) == (2, 1, {"no_supervised_tokens": 1}, [1])
    assert cut.tokens_read == dropped.tokens_read == cut.tokens + cut.dropped_tokens
    refused = train_of(path, "data.max_length=64", "data.overlong=error")
    assert (refused.rows, refused.samples, refused.refusals[0].where) == (2, 1, "row 1")


@pytest.mark.parametrize(
    ("name", "counts", "words"),
    [
        ("no_assistant.jsonl", (1, 0, {"no_supervised_tokens": 1}), "no row is left"),
        ("tools_two_schemas.jsonl", (2, 0, {"bad_row": 2}), "the chat template ignores"),
        ("empty.jsonl", (0, 0, {}), "no rows"),
        ("starts_with_assistant.jsonl", (1, 0, {"bad_row": 1}), "assistant"),
    ],
)
def test_a_set_of_which_nothing_is_left_is_counted(name: str, counts: tuple[int, int, dict[str, int]], words: str) -> None:
    # D10: kept and dropped totals; nothing kept is refused.
    found = train_of(CASES / name)
    assert (found.rows, found.samples, found.dropped) == counts and found.arrow == "" and found.lengths is None
    assert words in found.refusals[0].what


@pytest.mark.parametrize("name", ["roles_uau_u.jsonl", "double_assistant.jsonl", "bom.jsonl", "crlf_blank_lines.jsonl", "one_big_array.json"])
def test_sets_that_can_be_used(name: str) -> None:
    found = train_of(CASES / name)
    assert found.samples == found.rows > 0 and not found.refusals and found.tokens_read == found.tokens


def test_a_path_without_files_and_a_format_that_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    found = train_of("x.jsonl")
    assert "the format can't be told" in found.refusals[0].what and (found.rows, found.format) == (0, "")


def test_a_set_without_a_row_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"{broken\n" * 30 + b'{"a": "\xff"}\n')
    found = train_of("x.jsonl")
    assert (found.rows, found.samples, found.bad_rows, found.format, found.template) == (31, 0, 31, "", None)
    assert len(found.first["bad"]) == 3 and found.refusals[0].where == "row 1" and "not JSON" in found.refusals[0].what


def test_a_stream_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text(chat("a", "b") * 30 + "{\n" + chat("long " * 100, "x"))
    streamed = ("data.streaming=true", "train.max_steps=3", "data.max_length=100", "data.overlong=error")
    whole = report(*TINY, "data.train.path=s.jsonl", *streamed)
    found = whole.sets["train"]
    assert (found.rows, found.samples, found.bad_rows, found.arrow, len(found.refusals)) == (32, 30, 1, "", 2) and "streaming" in whole.notes[0]
    assert found.rendered and found.copies.rows == 29


def test_every_row_can_be_shown(tmp_path: Path) -> None:
    path = spec(tmp_path)
    broken = show(2, spec_path=path)
    assert (broken.outcome, broken.raw, broken.value, broken.samples) == ("bad", "{broken", None, []) and broken.problems
    empty = show(5, spec_path=path)
    assert (empty.outcome, empty.value) == ("bad", {"messages": []}) and "messages" in empty.reason
    long = show(6, spec_path=path)
    assert long.outcome == "dropped" and "data.max_length is 200, and data.overlong is drop" in long.reason and len(long.samples[0].ids) == long.tokens
    assert show(6, "data.overlong=error", spec_path=path).outcome == "bad"
    assert show(6, "data.overlong=truncate_left", spec_path=path).outcome == "truncated"
    pair = show(1, name="pairs", spec_path=path)
    assert (pair.set, pair.format, pair.file.endswith("b.csv")) == ("pairs", "prompt_completion", True)
    assert show(3, name="data.eval", spec_path=path).set == "eval"
    with pytest.raises(DataError, match="there is no row 4: the set eval has 3 rows"):
        show(4, name="eval", spec_path=path)
    with pytest.raises(SpecError, match="its sets are talk, pairs, eval"):
        show(1, name="test", spec_path=path)


def test_rows_of_a_set_without_a_format_are_shown(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{broken\n{"a": 1}\n')
    given = (*TINY, "data.train.path=x.jsonl")
    assert [(each.outcome, each.format, each.value) for each in (show(1, *given), show(2, *given))] == [("bad", "", None), ("bad", "", {"a": 1})]
    assert "the format can't be told" in show(2, *given).reason


def test_rows_without_targets_weights_and_splits_are_shown(tmp_path: Path) -> None:
    turns = [message for at in range(4) for message in ({"role": "user", "content": f"q{at} " * 9}, {"role": "assistant", "content": f"a{at}", "weight": 0.5})]
    (tmp_path / "t.jsonl").write_text(json.dumps({"messages": turns}) + "\n" + json.dumps({"messages": turns[:1]}) + "\n")
    given = (*TINY, "data.train.path=t.jsonl", "data.max_length=130", "data.overlong=split")
    split = show(1, *given)
    assert split.outcome == "split" and len(split.samples) > 1 and {weight for each in split.samples for weight in each.weights} == {0.0, 0.5}
    assert all(each.positions[0] == 0 for each in split.samples)
    whole = train_of("t.jsonl", *given[-2:])
    assert (whole.split, whole.rows, len(whole.first["split"])) == (
        1,
        2,
        1,
    ) and whole.tokens_read == whole.tokens - whole.repeated_tokens + whole.dropped_tokens
    none = show(2, *given)
    assert (none.outcome, none.reason) == ("dropped", "it has no supervised token")


def test_what_a_set_asks_of_the_mix() -> None:
    rules = (TrainingSet(path="a"), TrainingSet(path="a", weight=0.5), TrainingSet(path="a", samples=1000), TrainingSet(path="a", epochs=2.0))
    assert [asked_share(rule) for rule in rules] == ["once through it", "weight 0.5", "1,000 samples", "2 times through it"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the handed data is not here")
def test_handed_files() -> None:
    found = report(
        TINY[0], f"data.train.path={SHARED / 'glaive_toolcall_en_demo.json'}", f"data.eval.path={SHARED / 'gsm8k_test.jsonl'}", "data.max_length=4096"
    )
    held, train = found.sets["eval"], found.sets["train"]
    assert (held.rows, held.samples, held.copies.rows, held.format) == (1319, 1319, 0, "prompt_completion")
    # The tiny model's template takes no tools: every row that has some is named, and the training refused.
    assert (train.format, train.rows, found.refuses) == ("sharegpt", 300, True)
    assert train.bad_rows + train.samples + train.dropped.get("overlong", 0) == 300 and train.bad_rows > 100
