"""What each rank is fed with, counted by hand: the parts, the labels and their weights, the counts of each set, and the figures of the plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ftcore.batch.cost import AttentionShare
from ftcore.batch.plan_counts import count_run
from ftcore.batch.window import UpdateSequence
from ftcore.data.cache import Counts as WrittenCounts
from ftcore.data.cache import SampleSet, write_samples
from ftcore.data.mix import SampleMix
from ftcore.dist import Ranks
from ftcore.feed.fed_update import Counts, FedUpdate
from ftcore.feed.layout import Layout
from ftcore.feed.planned import PlannedFeeder
from ftcore.spec.sections import BatchSection, TrainingSet, TrainSection

BUDGET, SHARE = 60, AttentionShare(full=0.01)
SIZES = {"a": 23, "b": 9, "one": 1}


def write_set(path: Path, count: int, seed: int) -> SampleSet:
    """Samples of 1 to 40 tokens; of every fourth nothing is learned, of the others one or two ranges with weights of their own."""
    random = np.random.default_rng(seed)
    ids = [random.integers(3, 90, size=int(random.integers(1, 41))).astype(np.int32) for _ in range(count)]
    spans = [[] if index % 4 == 3 else sorted({(0, (len(each) + 1) // 2), (len(each) // 2 + 1, len(each))}) for index, each in enumerate(ids)]
    spans = [[(begin, end) for begin, end in each if begin < end] for each in spans]
    weights = [[float(random.choice([0.25, 1.0, 3.0])) for _ in each] for each in spans]
    supervised = sum(max(0, end - max(begin, 1)) for each in spans for begin, end in each)
    write_samples(path, ids, spans, list(range(1, count + 1)), WrittenCounts(rows=count, tokens=sum(map(len, ids)), supervised_tokens=supervised), weights)
    return SampleSet.open(path)


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> SampleMix:
    folder = tmp_path_factory.mktemp("planned")
    return SampleMix({name: write_set(folder / f"{name}.arrow", count, seed) for seed, (name, count) in enumerate(SIZES.items())})


def labels_of(mix: SampleMix, index: int) -> list[tuple[int, int, float]]:
    """(token before, label, weight) of each label of a sample that counts."""
    sample = mix.sample(index)
    weights = np.ones(len(sample.spans)) if sample.weights is None else sample.weights
    return [
        (int(sample.ids[at - 1]), int(sample.ids[at]), float(weight))
        for (begin, end), weight in zip(sample.spans.tolist(), weights, strict=True)
        for at in range(max(1, begin), end)
    ]


def labels_fed(fed: FedUpdate) -> list[tuple[int, int, float]]:
    """The same of what a rank computes."""
    found = []
    for batch in fed.batches:
        kept = batch.input_ids_BT[:, batch.keep_C].flatten()
        before = kept if batch.pick_K is None else kept[batch.pick_K]
        weights = torch.ones(batch.supervised_tokens) if batch.weights_K is None else batch.weights_K
        found += list(zip(before.tolist()[: batch.supervised_tokens], batch.targets_K.tolist(), weights.tolist(), strict=True))
    return found


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("world_size", [1, 3, 8])
@pytest.mark.parametrize("batch", [{"global_batch_size": 6}, {"tokens_per_update": 150}])
def test_every_rank_is_fed_with_its_part(mix: SampleMix, layout: str, world_size: int, batch: dict[str, int]) -> None:
    section = BatchSection(micro_batch_tokens=BUDGET, layout=layout, **batch)
    draws = {"a": TrainingSet(path="a", epochs=0.5), "b": TrainingSet(path="b", samples=12), "one": TrainingSet(path="one")}
    sequence = UpdateSequence(mix, batch=section, train=TrainSection(num_train_epochs=2.1, seed=7), draws=draws)
    how = Layout(micro_batch_tokens=BUDGET, attention_share=SHARE, layout=layout)
    feeders = [PlannedFeeder(mix, sequence, how, Ranks(rank, world_size, rank, torch.device("cpu"))) for rank in range(world_size)]
    counted = count_run(sequence, mix, batch=section, world_size=world_size, share=SHARE)
    seen = {name: Counts() for name in mix.names}
    for update in range(sequence.total_updates):
        fed = [feeder.next(update) for feeder in feeders]
        every = [int(sample) for each in fed for part in each.parts for sample in part]
        assert sorted(every) == sorted(fed[0].sample_ids.tolist())
        labels = [label for sample in every for label in labels_of(mix, sample)]
        assert sorted(label for each in fed for label in labels_fed(each)) == sorted(labels)
        for each in fed:
            assert each.weight_sum == sum(weight for *_, weight in labels)
            tokens = sum(len(mix.sample(sample).ids) for sample in every)
            assert each.counts == Counts(samples=len(every), tokens=tokens, supervised_tokens=len(labels)) == sum(each.by_set.values(), Counts())
            assert list(each.by_set) == list(SIZES)
            assert each.computed_tokens == sum(batch.tokens for other in fed for batch in other.batches)
            assert all(batch.tokens <= BUDGET for batch in each.batches)
        seen = {name: seen[name] + fed[0].by_set[name] for name in seen}
        assert {len(each.batches) for each in fed} == {int(counted.updates.micro_steps[update])}
        assert fed[0].computed_tokens - tokens == counted.updates.padding[update]
        packs = sum(len(part) > 0 for each in fed for part in each.parts)
        assert (counted.updates.packs[update], counted.updates.fill[update]) == (packs, tokens / (packs * BUDGET))
    assert {name: (each.samples, each.tokens, each.supervised_tokens) for name, each in seen.items()} == counted.by_set
    heaviest = counted.heaviest
    part = feeders[heaviest.rank].next(heaviest.update - 1).parts[heaviest.micro_step]
    assert (len(part), int(mix.lengths[part].max())) == (heaviest.samples, heaviest.longest)
