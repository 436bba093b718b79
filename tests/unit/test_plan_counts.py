"""What a plan counts of a whole run, from lengths alone."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ftcore.batch import plan_counts
from ftcore.batch.cost import AttentionShare
from ftcore.batch.deal import deal
from ftcore.batch.padded import padded_tokens
from ftcore.batch.plan import Plan, plan_run
from ftcore.batch.plan_counts import count_run, table_of_updates
from ftcore.batch.window import UpdateSequence
from ftcore.data.cache import Counts, write_samples
from ftcore.data.mix import SampleMix
from ftcore.data.prepared import ModelSource, Prepared, PreparedSet
from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.sections import BatchSection, DataSection, Spec, TrainingSet, TrainSection
from tests.ranks.specs import make_spec, with_section

Lengths = list[int] | npt.NDArray[np.int32]
SHARE = AttentionShare(full=0.001)


def write_set(path: Path, lengths: Lengths) -> str:
    ids = [np.zeros(int(length), dtype=np.int32) for length in lengths]
    counts = Counts(rows=len(ids), tokens=sum(map(int, lengths)), supervised_tokens=len(ids))
    write_samples(path, ids, [[(len(each) - 1, len(each))] for each in ids], list(range(1, len(ids) + 1)), counts)
    return str(path)


def cost_of(lengths: npt.NDArray[np.int32], layout: str) -> float:
    costs = SHARE.costs(lengths)
    return float(costs.max(initial=0) * len(costs) if layout == "padded" else costs.sum())


def planned(spec: Spec, train: SampleMix, tmp_path: Path, *, slots: int = 2, **of_set: int) -> Plan:
    resolved = ResolvedSpec(spec=spec, hosts=(Host(name="a", slots=slots),), sources={}, cache_dir=str(tmp_path))
    source = ModelSource(path=str(tmp_path), revision="", digest="", name="", trust_remote_code=False)
    sets = {
        name: PreparedSet(arrow="", samples=size, rows=size, tokens=int(each.lengths.sum()), supervised_tokens=size, format="text", files=("f",), **of_set)
        for name, size, each in zip(train.names, train.sizes, train.sets, strict=True)
    }
    return plan_run(resolved, train, {}, Prepared(train=sets, eval={}, model=source))[0]


def test_rows_packs_and_updates_of_an_unpacked_run(tmp_path: Path) -> None:
    """E07: 8861 rows, 4 in a micro-batch, 4 micro-batches an update, 3 epochs: 2216 micro-batches an epoch, 1662 updates."""
    train = SampleMix.open({"train": write_set(tmp_path / "rows", [7] * 8861)})
    spec = with_section(make_spec(0), "batch", global_batch_size=16, micro_batch_tokens=4 * 7, layout="padded")
    spec = with_section(spec, "train", max_steps=None, num_train_epochs=3.0)
    plan = planned(spec, train, tmp_path, slots=1)
    assert (plan.rows, plan.packs, plan.total_updates, plan.counted_updates) == (8861, 3 * 2216, 1662, 1662)
    assert (plan.micro_steps_min, plan.micro_steps_max, plan.filler_rows, plan.padding_tokens) == (4, 4, 0, 0)
    text = plan.render()
    for line in ("rows read:                    8,861\n", "updates:                      1,662\n", "packs:                        6,648 with"):
        assert line in text
    # On more ranks the updates are the same.
    assert planned(spec, train, tmp_path, slots=4).total_updates == 1662


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_every_update_of_the_run_is_counted(layout: str, tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(3, 60, 3000).astype(np.int32)
    train = SampleMix.open({"train": write_set(tmp_path / "rows", lengths)})
    batch = BatchSection(tokens_per_update=400, micro_batch_tokens=64, layout=layout)
    sequence = UpdateSequence(train, batch=batch, train=TrainSection(num_train_epochs=1.5, seed=2))
    counted = count_run(sequence, train, batch=batch, world_size=3, share=SHARE)
    updates = counted.updates
    assert len(updates) == sequence.total_updates > 300
    for update in (0, 7, len(updates) - 1):
        window = sequence.window(update)
        own = lengths[window.sample_ids]
        dealt = deal(own, world_size=3, micro_batch_tokens=64, attention_share=SHARE, layout=layout)
        parts = [own[part] for rank in dealt.parts for part in rank]
        packs = sum(1 for part in parts if len(part))
        computed = sum(max(1, padded_tokens(part) if layout == "padded" else int(part.sum())) for part in parts)
        assert (updates.epoch[update], updates.samples[update], updates.tokens[update]) == (window.epoch, len(own), own.sum())
        assert (updates.micro_steps[update], updates.packs[update], updates.padding[update]) == (dealt.micro_steps, packs, computed - own.sum())
        assert updates.fill[update] == pytest.approx(own.sum() / (64 * packs))
        costs = np.asarray([[cost_of(own[part], layout) for part in rank] for rank in dealt.parts])
        assert updates.imbalance[update] == pytest.approx(costs.sum(axis=1).max() / costs.sum(axis=1).mean())
        assert updates.waiting[update] == pytest.approx(1 - costs.sum() / 3 / costs.max(axis=0).sum())
    heavy = counted.heaviest
    window = sequence.window(heavy.update - 1)
    own = lengths[window.sample_ids]
    part = own[deal(own, world_size=3, micro_batch_tokens=64, attention_share=SHARE, layout=layout).parts[heavy.rank][heavy.micro_step]]
    assert heavy.tokens == (padded_tokens(part) if layout == "padded" else part.sum()) and (len(part), part.max()) == (heavy.samples, heavy.longest)
    rows = list(csv.DictReader(io.StringIO(table_of_updates(updates))))
    assert [int(row["update"]) for row in rows] == list(range(1, len(updates) + 1))
    assert sum(int(row["samples"]) for row in rows) == updates.samples.sum() and float(rows[3]["fill"]) == pytest.approx(updates.fill[3], abs=1e-4)


def test_the_longest_row_and_its_micro_step_are_named(tmp_path: Path) -> None:
    """E10: one row 20 times as long as the others is in the plan, with the update that computes it."""
    lengths = [50] * 200
    lengths[137] = 1000
    train = SampleMix.open({"train": write_set(tmp_path / "rows", lengths)})
    spec = with_section(make_spec(0, updates=25), "batch", global_batch_size=8, micro_batch_tokens=1000)
    plan = planned(spec, train, tmp_path)
    sequence = UpdateSequence(train, batch=spec.batch, train=spec.train)
    update = next(update for update in range(25) if 137 in sequence.window(update).sample_ids)
    assert (plan.longest.tokens, plan.longest.row, plan.longest.set) == (1000, 138, "train")
    assert (plan.heaviest.update, plan.heaviest.tokens, plan.heaviest.longest) == (update + 1, 1000, 1000)
    assert "longest sample:               1,000 tokens, row 138\n" in plan.render()
    assert f"1,000 tokens (1 samples, the longest 1,000), in update {update + 1}\n" in plan.render()


def test_a_longer_run_is_counted_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_counts, "COUNTED_SAMPLES", 30)
    train = SampleMix.open({"train": write_set(tmp_path / "rows", [5] * 20)})
    spec = with_section(make_spec(0, updates=1_000_000), "batch", global_batch_size=8, micro_batch_tokens=50)
    plan = planned(spec, train, tmp_path)
    # 20 samples of the first epoch, and 8 of the second.
    assert (plan.total_updates, plan.counted_updates, plan.counted_samples) == (1_000_000, 4, 28)
    assert "are of the first 4 updates" in plan.render()
    monkeypatch.setattr(plan_counts, "COUNTED_SAMPLES", 1)
    assert planned(spec, train, tmp_path).counted_updates == 1


def test_the_sets_of_a_mix(tmp_path: Path) -> None:
    train = SampleMix.open({"train": write_set(tmp_path / "a", [10] * 300), "code": write_set(tmp_path / "b", [40] * 100)})
    draws = {"train": TrainingSet(path="a", weight=0.25), "code": TrainingSet(path="b", weight=0.75)}
    spec = with_section(make_spec(0, updates=100), "batch", global_batch_size=8, micro_batch_tokens=100)
    spec = with_section(spec, "data", train=draws["train"], train_sets={"code": draws["code"]})
    assert isinstance(spec.data, DataSection) and dict(spec.data.training) == draws
    plan = planned(spec, train, tmp_path, bad_rows=2, split=3, repeated_tokens=11)
    assert (plan.samples, plan.samples_an_epoch, plan.counted_samples) == (400, 400, 800)
    code = plan.sets["code"]
    assert (code.drawn, code.share, code.token_share) == (300, 0.75, pytest.approx(30 * 40 / (30 * 40 + 10 * 10)))
    assert (code.format, code.files, code.bad_rows, code.split, code.repeated_tokens) == ("text", 1, 2, 3, 11)
    assert (plan.bad_rows, plan.split, plan.repeated_tokens, plan.tokens_read) == (4, 6, 22, 7000 - 22)
    text = plan.render()
    assert "300 an epoch of 100 samples: 75.0% of the samples, 92.3% of the tokens" in text
    assert "6,978 = 7,000 trained on - 22 repeated by splits + 0 dropped" in text and "rows split:                   6\n" in text
    assert json.loads(plan.to_json())["sets"]["code"]["drawn"] == 300
    assert plan.longest.set == "code" and "of code" in text


def test_ranks_announce_what_they_yield(tmp_path: Path) -> None:
    """E06: three samples, two an update, two ranks: two updates with as many micro-steps on either rank."""
    train = SampleMix.open({"train": write_set(tmp_path / "rows", [5, 6, 7])})
    for layout in ("packed", "padded"):
        batch = BatchSection(global_batch_size=2, micro_batch_tokens=8, layout=layout)
        sequence = UpdateSequence(train, batch=batch, train=TrainSection(num_train_epochs=1.0, seed=0))
        assert sequence.total_updates == 2
        for update in range(2):
            lengths = train.lengths[sequence.window(update).sample_ids]
            parts = deal(lengths, world_size=2, micro_batch_tokens=8, attention_share=0.0, layout=layout).parts
            assert len(parts[0]) == len(parts[1]) == 1
        counted = count_run(sequence, train, batch=batch, world_size=2, share=SHARE).updates
        assert counted.micro_steps.tolist() == [1, 1] and counted.packs.sum() == 3


def test_length_buckets_leave_the_order_of_a_run_random(tmp_path: Path) -> None:
    """E09: padding falls, and yet neither updates nor micro-steps get longer or shorter in the course of the run."""
    rng = np.random.default_rng(4)
    lengths = np.where(rng.random(6400) < 0.5, rng.integers(8, 13, 6400), rng.integers(900, 1101, 6400)).astype(np.int32)
    sequence_of = SampleMix.open({"train": write_set(tmp_path / "rows", lengths)})
    batch = BatchSection(global_batch_size=32, micro_batch_tokens=8800, layout="padded")
    sequence = UpdateSequence(sequence_of, batch=batch, train=TrainSection(num_train_epochs=1.0, seed=0))
    in_order: list[npt.NDArray[np.int32]] = []
    padded = 0
    for update in range(sequence.total_updates):
        own = lengths[sequence.window(update).sample_ids]
        dealt = deal(own, world_size=2, micro_batch_tokens=8800, attention_share=SHARE, layout="padded")
        for step in range(dealt.micro_steps):
            for rank in range(2):
                in_order.append(own[dealt.parts[rank][step]])
                padded += padded_tokens(in_order[-1])
    whole = np.concatenate(in_order)
    assert len(whole) == 6400
    assert abs(float(np.corrcoef(whole, np.arange(6400))[0, 1])) < 3 / np.sqrt(6400)
    means = whole.reshape(-1, 32).mean(axis=1)
    assert abs(float(np.corrcoef(means, np.arange(len(means)))[0, 1])) < 3 / np.sqrt(len(means))
    as_it_comes = sum(padded_tokens(lengths[start : start + 8]) for start in range(0, 6400, 8))
    assert padded / whole.sum() - 1 < 0.15 and as_it_comes / whole.sum() - 1 > 0.9
