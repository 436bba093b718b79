"""Weights of messages and rows: checked at the door, hidden from templates, kept with the tokens they count for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ftcore.data.build import prepare_set
from ftcore.data.cache import Counts, SampleSet, write_samples
from ftcore.data.formats.record_kinds import Conversation
from ftcore.data.overlong import cut_right
from ftcore.data.prepared import ModelSource
from ftcore.data.templates.aligner import Aligner
from ftcore.data.templates.renderer import ChatRenderer
from ftcore.data.templates.tokenise import tokenise_with
from ftcore.data.tokens import Tokens
from ftcore.spec.errors import DataError
from ftcore.spec.sections import DataSection, TrainingSet
from ftcore.tiny_llama import tiny_tokenizer
from tests.unit.base_models import SMOLLM2, TINY_LLAMA, loaded
from tests.unit.made_tokenizers import CHATML, FAMILIES, IM, MARKED, byte_level, wrap
from tests.unit.test_fields import ANSWER, USER, records, refused

END = "<|im_end|>"
Message = dict[str, Any]


def talk(*settings: Message) -> Conversation:
    """Three questions and answers, the answers with these settings."""
    messages: list[Message] = []
    for number, setting in enumerate(settings):
        messages += [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": f"answer {number}", **setting}]
    (record,) = records({"messages": messages})
    assert isinstance(record, Conversation)
    return record


def found(tokenizer: Any, conversation: Conversation) -> list[tuple[str, float]]:
    """Each supervised text with its weight."""
    (tokens,) = Aligner(tokenizer).encode([ChatRenderer(tokenizer).render(conversation)])
    assert isinstance(tokens, Tokens), str(tokens)
    texts = [tokenizer.decode(tokens.ids[start:end].tolist()) for start, end in tokens.spans]
    return list(zip(texts, tokens.weights, strict=True))


@pytest.mark.parametrize("model", [SMOLLM2, TINY_LLAMA])
def test_three_turns_with_real_tokenizers(model: str) -> None:
    tokenise, backend = loaded(model)
    weighted, plain = tokenise([talk({"weight": 2}, {"train": False}, {"weight": 0.5}), talk({}, {}, {})])
    assert isinstance(weighted, Tokens) and isinstance(plain, Tokens)
    texts = [backend.decode(weighted.ids[start:end].tolist(), skip_special_tokens=False) for start, end in weighted.spans]
    assert (texts, weighted.weights) == ([f"answer 0{END}", f"answer 2{END}"], (2.0, 0.5))
    assert weighted.ids.tolist() == plain.ids.tolist()
    assert weighted.spans == (plain.spans[0], plain.spans[2])
    assert plain.weights == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_three_turns_with_other_templates(family: Any) -> None:
    """Markers or not, only the spans of answers that count are left, each with its own weight."""
    tokenizer = family.make()
    whole = found(tokenizer, talk({}, {}, {}))
    assert [weight for _, weight in whole] == [1, 1, 1]
    assert found(tokenizer, talk({"weight": 3}, {"weight": 0}, {"train": True})) == [(whole[0][0], 3), (whole[2][0], 1)]
    assert found(tokenizer, talk({"train": False}, {"train": False}, {"weight": 0})) == []


def test_greeting_that_is_not_learned_may_come_first() -> None:
    tokenizer = wrap(byte_level(specials=IM), template=CHATML, eos=END)
    (record,) = records({"messages": [{**ANSWER, "train": False}, USER, ANSWER]})
    assert found(tokenizer, record) == [(f"hello{END}", 1)]


TWICE = MARKED.replace("+ '<|im_end|>' }}{% endgeneration %}", "}}{% endgeneration %}{% generation %}<|im_end|>{% endgeneration %}")
LAST_ONLY = MARKED.replace("m['role'] == 'assistant'", "m['role'] == 'assistant' and loop.last")


def test_markers_twice_in_an_answer() -> None:
    tokenizer = wrap(byte_level(specials=IM), template=TWICE, eos=END)
    expected = [("answer 0", 2), (END, 2), ("answer 2", 1), (END, 1)]
    assert found(tokenizer, talk({"weight": 2}, {"weight": 0}, {})) == expected


def test_markers_that_do_not_tell_the_answers_apart() -> None:
    tokenizer = wrap(byte_level(specials=IM), template=LAST_ONLY, eos=END)
    assert found(tokenizer, talk({}, {})) == [(f"answer 1{END}", 1)]
    with pytest.raises(DataError, match="don't tell its answers apart"):
        found(tokenizer, talk({"weight": 2}, {}))


@pytest.mark.parametrize("base", [CHATML, MARKED])
def test_template_that_writes_every_key_of_a_message(base: str) -> None:
    template = base.replace("m['role'] + '\n'", "m['role'] + (m.keys() | list | join(',')) + '\n'")
    template = template.replace("assistant\n' }}{% endif %}", "assistantrole,content\n' }}{% endif %}")
    tokenizer = wrap(byte_level(specials=IM), template=template, eos=END)
    renderer = ChatRenderer(tokenizer)
    rendered = renderer.render(talk({"weight": 2, "train": True}, {"train": False}))
    assert "role,content" in rendered.text
    assert rendered.text == renderer.render(talk({}, {})).text
    assert rendered.weights == (2.0,)


def test_what_counts_nothing_may_say_so() -> None:
    (record,) = records({"messages": [{**USER, "train": False}, {**USER, "weight": 0.0}, {**ANSWER, "weight": None, "train": None}]})
    assert record.messages == [USER, USER, ANSWER]
    assert record.weights == {}


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"weight": -1}, "messages[1].weight is negative"),
        ({"weight": float("nan")}, "messages[1].weight is nan"),
        ({"weight": float("inf")}, "messages[1].weight is over 1e+06"),
        ({"weight": 10**400}, "messages[1].weight is over 1e+06"),
        ({"weight": 1e-30}, "messages[1].weight is 1e-30"),
        ({"weight": True}, "messages[1].weight is true"),
        ({"weight": "2"}, "messages[1].weight is '2'"),
        ({"train": 1}, "messages[1].train is 1"),
        ({"train": True, "weight": 0}, "messages[1] has train true and weight 0"),
        ({"train": False, "weight": 0.5}, "messages[1] has train false and weight 0.5"),
    ],
)
def test_refused_weights(setting: Message, reason: str) -> None:
    text = refused({"messages": [USER, ANSWER]}, {"messages": [USER, {**ANSWER, **setting}]}, {"messages": [USER, {**ANSWER, **setting}]})
    assert f"f.jsonl:12: row 2: {reason}" in text
    assert f"f.jsonl:13: row 3: {reason}" in text


@pytest.mark.parametrize("setting", [{"weight": 2}, {"train": True}])
def test_only_answers_can_count(setting: Message) -> None:
    assert "row 1: messages[0] is the user's, so it can't count" in refused({"messages": [{**USER, **setting}, ANSWER]})
    pair = {"prompt": [USER, {**ANSWER, **setting}, USER], "completion": [ANSWER]}
    assert "row 1: prompt[1] is part of the prompt" in refused(pair, form="prompt_completion")


def test_weight_of_a_pair() -> None:
    rows = [{"prompt": "a", "completion": "b", "w": weight} for weight in (2, 0, None)] + [{"prompt": "a", "completion": "b"}]
    pairs = records(*rows, form="prompt_completion", weight="w")
    assert [pair.weight for pair in pairs] == [2.0, 0.0, 1.0, 1.0]
    encoded = tokenise_with(wrap(byte_level(specials=IM), template=None, eos=END))(pairs)
    assert [tokens.weights for tokens in encoded if isinstance(tokens, Tokens)] == [(2.0,), (), (1.0,), (1.0,)]
    assert "row 1: w is negative" in refused({"prompt": "a", "completion": "b", "w": -2}, form="prompt_completion", weight="w")
    unseen = refused({"prompt": "a", "completion": "b"}, form="prompt_completion", weight="w")
    assert "data.train.columns.weight: none of the first 1 rows has the field 'w'" in unseen


def test_weight_of_a_row_times_those_of_its_messages() -> None:
    row = {"prompt": [USER, ANSWER, USER], "completion": [ANSWER, USER, {**ANSWER, "weight": 0.5}, {**ANSWER, "train": False}], "weight": 2}
    (record,) = records(row, form="prompt_completion")
    assert record.weights == {3: 2.0, 6: 0.0}


def test_weights_survive_truncation() -> None:
    tokens = Tokens(ids=np.arange(10, dtype=np.int32), spans=((1, 3), (4, 7), (8, 10)), weights=(2.0, 0.5, 3.0))
    cut = cut_right(tokens, 5)
    assert (cut.spans, cut.weights) == (((1, 3), (4, 5)), (2.0, 0.5))


def test_cache_keeps_weights(tmp_path: Path) -> None:
    ids = [np.arange(size, dtype=np.int32) for size in (4, 2, 6)]
    spans = [[(0, 3)], [], [(1, 2), (3, 6)]]
    counts = Counts(rows=3, tokens=12, supervised_tokens=6)
    write_samples(tmp_path / "w.arrow", ids, spans, [1, 2, 3], counts, [[2.0], [], [1.0, 0.1]])
    write_samples(tmp_path / "other.arrow", ids, spans, [1, 2, 3], counts, [[2.0], [], [1.0, 0.2]])
    write_samples(tmp_path / "ones.arrow", ids, spans, [1, 2, 3], counts, [[1.0], [], [1.0, 1.0]])
    write_samples(tmp_path / "none.arrow", ids, spans, [1, 2, 3], counts)
    weighted, other, ones, none = (SampleSet.open(tmp_path / f"{name}.arrow") for name in ("w", "other", "ones", "none"))
    assert (weighted.is_weighted, ones.is_weighted, none.is_weighted) == (True, False, False)
    assert len({weighted.fingerprint, other.fingerprint, none.fingerprint}) == 3
    assert ones.fingerprint == none.fingerprint
    assert weighted.weight_sums == pytest.approx([4, 0, 1 + 3 * float(np.float32(0.1))], rel=1e-15)
    assert weighted.weight_sums.dtype == none.weight_sums.dtype == np.float64
    assert none.weight_sums.tolist() == none.supervised.tolist() == weighted.supervised.tolist() == [2, 0, 4]
    kept = [weighted.sample(index).weights for index in range(3)]
    assert [None if each is None else each.tolist() for each in kept] == [[2.0], [], [1.0, float(np.float32(0.1))]]
    assert none.sample(0).weights is None
    assert weighted.is_intact()


def test_changed_weight_is_found(tmp_path: Path) -> None:
    path = tmp_path / "w.arrow"
    write_samples(path, [np.arange(4, dtype=np.int32)], [[(1, 4)]], [1], Counts(rows=1, tokens=4, supervised_tokens=3), [[1.2345]])
    payload = bytearray(path.read_bytes())
    payload[payload.index(np.float32(1.2345).tobytes())] ^= 1
    path.write_bytes(payload)
    assert not SampleSet.open(path).is_intact()


def test_a_weight_for_each_span(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="needs one weight"):
        write_samples(tmp_path / "w.arrow", [np.arange(4, dtype=np.int32)], [[(1, 4)]], [1], Counts(rows=1, tokens=4, supervised_tokens=3), [[2.0, 2.0]])


def test_file_with_fewer_weights_than_spans(tmp_path: Path) -> None:
    path = tmp_path / "w.arrow"
    write_samples(path, [np.arange(4, dtype=np.int32)], [[(1, 2), (3, 4)]], [1], Counts(rows=1, tokens=4, supervised_tokens=2), [[2.0, 1.0]])
    batch = pa.ipc.open_file(path).get_batch(0)
    short = pa.array([[2.0]], type=pa.large_list(pa.float32()))
    columns = {name: short if name == "weights" else batch.column(name) for name in batch.schema.names}
    changed = pa.record_batch(columns).replace_schema_metadata(batch.schema.metadata)
    with pa.ipc.new_file(path.with_name("short.arrow"), changed.schema) as writer:
        writer.write_batch(changed)
    with pytest.raises(DataError, match="2 supervised ranges and 1 weights"):
        SampleSet.open(path.with_name("short.arrow"))


def test_rows_of_weight_0_are_dropped_and_counted(tmp_path: Path) -> None:
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    source = ModelSource(path=str(tmp_path / "model"), revision="", digest="", name="tiny", trust_remote_code=False)
    path = tmp_path / "rows.jsonl"
    settings: list[Message] = [{}, {"train": False}, {"weight": 0.25}]
    path.write_text("".join(json.dumps({"messages": [USER, {**ANSWER, **setting}]}) + "\n" for setting in settings), encoding="utf-8")
    data = DataSection(train=TrainingSet(path=str(path)))
    kept = prepare_set("data.train", data.train, data, source, tmp_path)
    assert (kept.samples, kept.dropped) == (2, {"no_supervised_tokens": 1})
    samples = SampleSet.open(kept.arrow)
    assert samples.weight_sums.tolist() == [samples.supervised[0], 0.25 * samples.supervised[1]]
