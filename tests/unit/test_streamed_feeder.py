"""A stream trains on what a prepared set holds: the same samples once an epoch, the same labels, weights and counts."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcore.batch.cursor import Cursor
from ftcore.data.build import prepare_set
from ftcore.data.mix import SampleMix
from ftcore.data.prepared import ModelSource, PreparedSet
from ftcore.dist import Ranks
from ftcore.feed import streamed
from ftcore.feed.fed_update import Counts, FedUpdate
from ftcore.feed.layout import Layout
from ftcore.spec.data_sections import DataSection, TrainingSet
from ftcore.stream.prepare import prepare_stream
from ftcore.tiny_llama import tiny_tokenizer
from tests.ranks.specs import make_spec, with_section
from tests.unit.test_planned_feeder import labels_fed, labels_of

BUDGET = 200
WORDS = ("the", "harbour", "lamp", "is cold", "and", "the tide", "of seven", "windows", "turns", "to paper", "in the north", "again")


class Alone:
    """The only rank's exchange."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def sum(self, values: Any) -> Any:
        return values

    def gather(self, value: Any) -> list[Any]:
        return [value]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelSource]:
    """Dialogues with weights of their own, and tokens of which the first is labelled too; some of either are longer than a sample may be."""
    folder = tmp_path_factory.mktemp("streamed")
    chats = [{"messages": [message for turn in range(row % 4 + 1) for message in turn_of(row, turn)]} for row in range(21)]
    tokens = [[3 + (row + at) % 80 for at in range(row % 6 * 25 + 1)] for row in range(14)]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chats))
    (folder / "tokens.jsonl").write_text("".join(json.dumps({"input_ids": ids, "labels": ids}) + "\n" for ids in tokens))
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(folder / "model")
    (folder / "model" / "config.json").write_text(json.dumps({"vocab_size": len(tokenizer)}))
    return folder, ModelSource(path=str(folder / "model"), revision="", digest="", name="", trust_remote_code=False)


def turn_of(row: int, turn: int) -> list[dict[str, Any]]:
    answer = " ".join(WORDS[turn : turn + row % 5 + 1])
    return [{"role": "user", "content": WORDS[row % 7]}, {"role": "assistant", "content": answer, "weight": (0.25, 1.0, 3.0, 0.0)[(row + turn) % 4]}]


def fed_by_stream(data: DataSection, written: tuple[Path, ModelSource], layout: str) -> list[FedUpdate]:
    folder, model = written
    spec = with_section(dataclasses.replace(make_spec(2, updates=60), data=data), "batch", global_batch_size=4, micro_batch_tokens=BUDGET)
    how = Layout(micro_batch_tokens=BUDGET, attention_share=0.01, layout=layout)
    source = prepare_stream(data, model, folder / "cache")
    start = Cursor(order_seed=3, data_fingerprint=source.fingerprint)
    feeder = streamed.open_stream(source, spec, model, how, Ranks(0, 1, 0, torch.device("cpu")), start)
    fed = []
    while (update := feeder.next(len(fed))) is not None:
        fed.append(update)
    feeder.close()
    return fed


def prepared_by(data: DataSection, written: tuple[Path, ModelSource]) -> dict[str, PreparedSet]:
    folder, model = written
    plain = dataclasses.replace(data, streaming=False)
    return {name: prepare_set(f"data.train_sets.{name}", each, plain, model, folder / "cache") for name, each in data.training.items()}


@pytest.mark.parametrize("overlong", ["drop", "truncate_right", "truncate_left", "split"])
@pytest.mark.parametrize(("layout", "loss_on"), [("packed", "all"), ("padded", "assistant")])
def test_an_epoch_is_what_the_prepared_sets_hold(
    written: tuple[Path, ModelSource], monkeypatch: pytest.MonkeyPatch, overlong: str, layout: str, loss_on: str
) -> None:
    """D10, E09."""
    monkeypatch.setattr(streamed, "HostGroup", Alone)
    sets = {name: TrainingSet(path=str(written[0] / f"{name}.jsonl")) for name in ("chats", "tokens")}
    data = DataSection(
        train_sets=sets, max_length=90, overlong=overlong, loss_on=loss_on, streaming=True, lanes=3, shuffle_buffer=5, repeat=False, prefetch_updates=0
    )
    fed, prepared = fed_by_stream(data, written, layout), prepared_by(data, written)
    mix = SampleMix.open({name: each.arrow for name, each in prepared.items()})
    labels = [label for index in range(len(mix)) for label in labels_of(mix, index)]
    assert sorted(label for each in fed for label in labels_fed(each)) == sorted(labels)
    assert sum(each.weight_sum for each in fed) == mix.weight_sums.sum() == sum(weight for *_, weight in labels)
    for each in fed:
        assert each.weight_sum == sum(weight for *_, weight in labels_fed(each))
        assert each.computed_tokens == sum(batch.tokens for batch in each.batches) and all(batch.tokens <= BUDGET for batch in each.batches)
    of_set = {name: sum((each.by_set[name] for each in fed), Counts()) for name in sets}
    assert of_set == {name: Counts(samples=each.samples, tokens=each.tokens, supervised_tokens=each.supervised_tokens) for name, each in prepared.items()}
    assert sum((each.counts for each in fed), Counts()) == sum(of_set.values(), Counts())
    assert sum(each.truncated for each in fed) == sum(each.truncated for each in prepared.values())
    assert sum((Counter(each.dropped_rows) for each in fed), Counter()) == sum((Counter(each.dropped) for each in prepared.values()), Counter())
