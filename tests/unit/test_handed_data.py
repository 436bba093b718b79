"""Every row of every handed file has a right outcome: in their order, what is learned of it, or why it is left out.

Cases C09, D01, D03, D04, D06, D08, D10, D20. The files go through the preparation as they are: `format: auto`, and no columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcore.data.build import prepare_set
from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource, PreparedSet
from ftcore.spec.errors import DataError
from ftcore.spec.sections import DataSection, TrainingSet
from ftcore.tiny_llama import tiny_tokenizer
from tests.unit.base_models import shared_data

CASES = Path(__file__).resolve().parents[1] / "cases" / "data"
END = "<|im_end|>"
BLUE = [f"Blue.{END}"]
TOKENIZER: Any = tiny_tokenizer()
Outcome = list[str] | str
"""The texts that are learned of a row, in order; or a part of the reason why it is left out."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    folder = tmp_path_factory.mktemp("tokenizer")
    TOKENIZER.save_pretrained(folder)
    return ModelSource(path=str(folder), revision="", digest="", name="tiny", trust_remote_code=False)


def prepared(path: Path, model: ModelSource, cache: Path, **settings: Any) -> PreparedSet:
    data = DataSection(train=TrainingSet(path=str(path)), **{"on_bad_row": "drop", "max_length": 1 << 20, "chat_template": "chatml", **settings})
    assert data.train is not None
    return prepare_set("data.train", data.train, data, model, cache)


def outcomes(kept: PreparedSet) -> dict[int, Outcome]:
    """Row -> its outcome. Nothing is counted twice, and nothing goes missing."""
    found: dict[int, Outcome] = {}
    samples = SampleSet.open(kept.arrow)
    backend = TOKENIZER.backend_tokenizer
    assert samples.rows.tolist() == sorted(samples.rows.tolist()), "the samples are in the order of their rows"
    for index, row in enumerate(samples.rows.tolist()):
        sample = samples.sample(index)
        found[row] = [backend.decode(sample.ids[start:end].tolist(), skip_special_tokens=False) for start, end in sample.spans]
    for line in Path(kept.outcomes).read_text(encoding="utf-8").splitlines():
        told = json.loads(line)
        assert told["row"] not in found
        found[told["row"]] = f"{told['outcome']}: {told['reason']}"
    assert sorted(found) == list(range(1, kept.rows + 1))
    assert kept.samples + sum(kept.dropped.values()) == kept.rows
    return found


def called(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>{END}'


NO_ANSWER = "no_supervised_tokens"
TABLE: dict[str, list[Outcome]] = {
    "array_per_line.jsonl": ["a row must be a JSON object", BLUE],
    "bom.jsonl": [BLUE, BLUE],
    "crlf_blank_lines.jsonl": [BLUE, BLUE],
    "double_assistant.jsonl": [[f"b{END}", f"c{END}"]],
    "empty_assistant.jsonl": [[END]],
    "extra_field_last_row.jsonl": [BLUE] * 6,
    "long_prompt_short_answer.jsonl": [[f"yes{END}"], BLUE],
    "mixed_types.jsonl": [BLUE] * 3,
    "one_big_array.json": [BLUE, BLUE],
    "roles_uau_u.jsonl": [[f"b{END}"]],
    "tools_two_schemas.jsonl": [[called("f", '{"a": null}'), f"ok{END}"], [called("g", '{"b": 1}'), f"ok{END}"]],
    "truncated_line_3.jsonl": [BLUE, BLUE, "not JSON", BLUE],
}
REFUSED = {
    "empty.jsonl": "no rows: the file is empty",
    "no_assistant.jsonl": "no row is left: of 1 rows, 1 no_supervised_tokens (the first, row 1: no_supervised_tokens (roles: user))",
    "starts_with_assistant.jsonl": "the first message is the assistant's, nothing prompts it (roles: assistant user assistant)",
}
"""Files that give nothing to train on: the preparation stops."""


def test_every_file_has_its_outcomes() -> None:
    assert {path.name for path in CASES.iterdir()} == TABLE.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", TABLE)
def test_rows_of_the_case_files(name: str, tiny: ModelSource, tmp_path: Path) -> None:
    kept = prepared(CASES / name, tiny, tmp_path)
    assert kept.format == "messages"
    for row, expected in enumerate(TABLE[name], start=1):
        found = outcomes(kept)[row]
        assert found == expected if isinstance(expected, list) else expected in found
    assert kept.rows == len(TABLE[name])


@pytest.mark.parametrize("name", REFUSED)
def test_case_files_that_give_nothing(name: str, tiny: ModelSource, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        prepared(CASES / name, tiny, tmp_path)
    assert REFUSED[name] in str(caught.value)
    assert name in str(caught.value)
    assert "max_length" not in str(caught.value), "no length would help"


@pytest.mark.parametrize(("template", "reason"), [("", "row 1: the row has tools, and the chat template ignores them"), ("chatml", "")])
def test_without_on_bad_row_the_first_bad_row_stops(template: str, reason: str, tiny: ModelSource, tmp_path: Path) -> None:
    """D08: tools reach the template, or the rows that have some are named."""
    if not reason:
        assert prepared(CASES / "tools_two_schemas.jsonl", tiny, tmp_path, on_bad_row="error", chat_template=template).samples == 2
        return
    with pytest.raises(DataError) as caught:
        prepared(CASES / "tools_two_schemas.jsonl", tiny, tmp_path, on_bad_row="error", chat_template=template)
    assert reason in str(caught.value) and "row 2: the row has tools" in str(caught.value)


def test_tools_of_each_row_are_in_its_own_prompt(tiny: ModelSource, tmp_path: Path) -> None:
    """D06: only `a` in row 1, only `b` in row 2."""
    samples = SampleSet.open(prepared(CASES / "tools_two_schemas.jsonl", tiny, tmp_path).arrow)
    texts = [TOKENIZER.backend_tokenizer.decode(samples.sample(index).ids.tolist(), skip_special_tokens=False) for index in range(2)]
    assert '"properties": {"a": {"type": "string"}}' in texts[0] and '"b"' not in texts[0] and "null" in texts[0].partition("<tool_call>")[2]
    assert '"properties": {"b": {"type": "integer"}}' in texts[1] and '"a"' not in texts[1]
    assert all("null" not in text.partition("</tools>")[0] for text in texts)


def test_long_prompt(tiny: ModelSource, tmp_path: Path) -> None:
    """C09: what is cut to nothing is counted, and reported row by row."""
    for overlong, reason in (("drop", "overlong"), ("truncate_right", NO_ANSWER)):
        kept = prepared(CASES / "long_prompt_short_answer.jsonl", tiny, tmp_path, max_length=200, overlong=overlong)
        assert (kept.samples, kept.rows, kept.dropped) == (1, 2, {reason: 1})
        assert outcomes(kept)[1] == f"dropped: {reason}"


def of_sharegpt(row: dict[str, Any]) -> list[str]:
    """What must be learned of a row: the assistant's texts and calls with their ends."""
    texts = []
    for turn in row["conversations"]:
        if turn["from"] == "gpt":
            texts.append(turn["value"] + END)
        elif turn["from"] == "function_call":
            call = json.loads(turn["value"])
            texts.append(called(call["name"], json.dumps(call["arguments"], ensure_ascii=False)))
    return texts


HANDED: list[tuple[str, str, int, int, Callable[[dict[str, Any]], list[str]]]] = [
    ("sharegpt_dummy_conversation.json", "sharegpt", 500, 1000, of_sharegpt),
    ("glaive_toolcall_en_demo.json", "sharegpt", 300, 957, of_sharegpt),
    ("gsm8k_test.jsonl", "prompt_completion", 1319, 1319, lambda row: [row["answer"] + END]),
    ("gsm8k_train.jsonl", "prompt_completion", 7473, 7473, lambda row: [row["answer"] + END]),
]


def handed_rows(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.split("\n") if line]


@pytest.mark.parametrize(("name", "form", "count", "answers", "expected"), HANDED, ids=[name for name, *_ in HANDED])
def test_rows_of_the_handed_files(
    name: str, form: str, count: int, answers: int, expected: Callable[[dict[str, Any]], list[str]], tiny: ModelSource, tmp_path: Path
) -> None:
    path = shared_data(name)
    kept = prepared(path, tiny, tmp_path, on_bad_row="error")
    found, rows = outcomes(kept), handed_rows(path)
    assert (kept.format, kept.rows, kept.samples, kept.dropped, kept.truncated) == (form, count, count, {}, 0)
    assert [found[number] for number in range(1, count + 1)] == [expected(row) for row in rows]
    assert sum(map(len, found.values())) == answers
    samples = SampleSet.open(kept.arrow)
    texts = [TOKENIZER.backend_tokenizer.decode(samples.sample(index).ids.tolist(), skip_special_tokens=False) for index in range(count)]
    for text, row in zip(texts, rows, strict=True):
        shown = [row["question"]] if form != "sharegpt" else [turn["value"] for turn in row["conversations"] if turn["from"] in ("human", "observation")]
        assert all(each in text for each in shown)
        assert all(json.dumps(tool["name"]) in text for tool in json.loads(row.get("tools") or "[]"))


def test_handed_rows_with_tools_and_a_template_without(tiny: ModelSource, tmp_path: Path) -> None:
    """D08: each row with tools is left out and named; the others are as they were."""
    path = shared_data("glaive_toolcall_en_demo.json")
    rows = handed_rows(path)
    plain = replace(tiny)
    kept = prepared(path, plain, tmp_path, chat_template="")
    found = outcomes(kept)
    with_tools = {number for number, row in enumerate(rows, start=1) if json.loads(row["tools"])}
    assert (len(with_tools), kept.bad_rows, kept.samples) == (191, 191, 109)
    for number, row in enumerate(rows, start=1):
        expected = "bad: the row has tools, and the chat template ignores them (template: the tokenizer's own)" if number in with_tools else of_sharegpt(row)
        assert found[number] == expected
