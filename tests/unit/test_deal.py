"""Deal: each sample once, no micro-step over budget, the same number of micro-steps on each rank."""

from __future__ import annotations

import itertools
import time

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcore.batch.bound import martello_toth_bound
from ftcore.batch.cost import sample_costs
from ftcore.batch.deal import Deal, deal, deal_many
from ftcore.batch.padded import padded_tokens
from ftcore.spec.errors import DataError

Int32s = npt.NDArray[np.int32]

SHARE = 0.001
RANKS = st.sampled_from([1, 2, 3, 4, 8])
LAYOUTS = st.sampled_from(["packed", "padded"])


@st.composite
def updates(draw: st.DrawFn) -> tuple[list[Int32s], int]:
    """The lengths of some updates, and a budget that holds the longest sample: any, or a tight one."""
    budget = draw(st.integers(1, 300))
    longest = draw(st.sampled_from([budget, max(1, budget // 2), max(1, budget // 8)]))
    sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))
    return [np.asarray(draw(st.lists(st.integers(1, longest), min_size=size, max_size=size)), dtype=np.int32) for size in sizes], budget


def in_json(dealt: Deal) -> list[list[list[int]]]:
    return [[part.tolist() for part in parts] for parts in dealt.parts]


@given(given=updates(), world_size=RANKS, layout=LAYOUTS)
def test_deal_is_a_partition_within_budget(given: tuple[list[Int32s], int], world_size: int, layout: str) -> None:
    (lengths, *_), budget = given
    dealt = deal(lengths, world_size=world_size, micro_batch_tokens=budget, attention_share=SHARE, layout=layout)
    assert len(dealt.parts) == world_size
    # E06: what one rank announces is what it yields, and what the others do.
    assert {len(parts) for parts in dealt.parts} == {dealt.micro_steps}
    everything = np.concatenate([part for parts in dealt.parts for part in parts])
    assert sorted(everything.tolist()) == list(range(len(lengths)))
    tokens = [padded_tokens(lengths[part]) if layout == "padded" else int(lengths[part].sum()) for parts in dealt.parts for part in parts]
    assert max(tokens) <= budget


@settings(max_examples=40)
@given(given=updates(), world_size=RANKS, layout=LAYOUTS)
def test_many_updates_are_dealt_like_each_alone(given: tuple[list[Int32s], int], world_size: int, layout: str) -> None:
    lengths, budget = given
    bounds = np.append(0, np.cumsum([len(each) for each in lengths]))
    many = deal_many(np.concatenate(lengths), bounds, world_size=world_size, micro_batch_tokens=budget, attention_share=SHARE, layout=layout)
    for update, own in enumerate(lengths):
        dealt = deal(own, world_size=world_size, micro_batch_tokens=budget, attention_share=SHARE, layout=layout)
        again = deal(own.copy(), world_size=world_size, micro_batch_tokens=budget, attention_share=SHARE, layout=layout)
        assert in_json(dealt) == in_json(again)
        assert dealt.micro_steps == many.micro_steps[update]
        bins = many.bin_of[bounds[update] : bounds[update + 1]] - many.first_bins[update]
        parts = [[np.flatnonzero(bins == step * world_size + rank).tolist() for step in range(dealt.micro_steps)] for rank in range(world_size)]
        assert parts == in_json(dealt)


def test_a_deal_is_the_same_on_every_machine() -> None:
    """A change of these parts would change the rounding of every run that is resumed; nothing else."""
    lengths = np.asarray([40, 7, 31, 22, 5, 18, 30, 9, 12, 3], dtype=np.int32)
    assert in_json(deal(lengths, world_size=2, micro_batch_tokens=64, attention_share=SHARE)) == PACKED
    assert in_json(deal(lengths, world_size=2, micro_batch_tokens=64, attention_share=SHARE, layout="padded")) == PADDED


PACKED = [[[1, 3, 5], [6, 8]], [[2, 4, 7], [0, 9]]]
PADDED = [[[1, 4, 7, 8, 9], [3, 5]], [[2, 6], [0]]]


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=60), budget=st.integers(60, 100))
def test_the_bound_of_martello_and_toth_is_one(lengths: list[int], budget: int) -> None:
    array = np.asarray(lengths, dtype=np.int32)
    bound = martello_toth_bound(array, budget)
    assert -(-sum(lengths) // budget) <= bound <= deal(array, world_size=1, micro_batch_tokens=budget, attention_share=0.0).micro_steps


def test_the_bound_counts_what_can_not_share() -> None:
    # 7 + 6 have a bin each; of the fours, which no bin holds three of, one fits beside the 6 and two share a bin.
    assert martello_toth_bound(np.asarray([7, 6, 4, 4, 4], dtype=np.int32), 10) == 3
    assert martello_toth_bound(np.asarray([6, 6, 6, 6], dtype=np.int32), 10) == 4


def long_prompts(count: int, seed: int) -> Int32s:
    """Short rows and long prompts of uneven length, mixed."""
    rng = np.random.default_rng(seed)
    is_long = rng.random(count) < 0.3
    return np.where(is_long, rng.uniform(500, 2048, count), rng.lognormal(5, 0.8, count).clip(8, 2048)).astype(np.int32)


def rank_costs(lengths: Int32s, dealt: Deal, share: float) -> npt.NDArray[np.float64]:
    costs = sample_costs(lengths, share)
    return np.asarray([sum(costs[part].sum() for part in parts) for parts in dealt.parts])


def test_ranks_cost_alike_on_long_prompts_and_no_micro_step_is_wasted() -> None:
    share, budget = 1 / 6000, 4096
    steps = needed = 0
    for seed in range(60):
        lengths = long_prompts(256, seed)
        dealt = deal(lengths, world_size=8, micro_batch_tokens=budget, attention_share=share)
        costs = rank_costs(lengths, dealt, share)
        assert costs.max() / costs.mean() <= 1.005
        steps, needed = steps + dealt.micro_steps, needed + -(-martello_toth_bound(lengths, budget) // 8)
    assert steps <= needed * 1.002


def test_few_long_samples_are_packed_by_first_fit() -> None:
    """Two or three samples fill a bin here, and balance alone would take a micro-step more in most updates."""
    share, steps, needed = 1 / 6000, 0, 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        lengths = (rng.normal(185, 50, (256, 9)).clip(60, 310) * (np.arange(9) <= rng.integers(0, 9, 256)[:, None])).sum(axis=1).clip(8, 2048).astype(np.int32)
        dealt = deal(lengths, world_size=8, micro_batch_tokens=2048, attention_share=share)
        assert max(int(lengths[part].sum()) for parts in dealt.parts for part in parts) <= 2048
        costs = rank_costs(lengths, dealt, share)
        assert costs.max() / costs.mean() <= 1.03
        steps, needed = steps + dealt.micro_steps, needed + -(-martello_toth_bound(lengths, 2048) // 8)
    assert steps <= needed * 1.01


@pytest.mark.parametrize("lengths", [[6, 5, 3, 2, 2, 2], [5, 5, 4, 3, 3], [10, 4, 4, 2]])
def test_exchanges_find_room_where_balance_alone_would_overflow(lengths: list[int]) -> None:
    assert deal(np.asarray(lengths, dtype=np.int32), world_size=2, micro_batch_tokens=10, attention_share=0.0).micro_steps == 1


def test_tight_windows_are_filled() -> None:
    """Updates by tokens leave less than one sample's room in all bins together."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        lengths = rng.lognormal(4.6, 0.5, 2000).clip(8, 1024).astype(np.int32)
        lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), 8 * 2 * 4096, side="right"))]
        assert deal(lengths, world_size=8, micro_batch_tokens=4096, attention_share=SHARE).micro_steps == 2


def test_a_rank_without_work_gets_fillers() -> None:
    for layout in ("packed", "padded"):
        dealt = deal(np.asarray([5], dtype=np.int32), world_size=4, micro_batch_tokens=64, attention_share=0.0, layout=layout)
        assert [len(parts[0]) for parts in dealt.parts] == [1, 0, 0, 0]
        nothing = deal(np.zeros(0, np.int32), world_size=2, micro_batch_tokens=9, attention_share=0.0, layout=layout)
        assert [len(part) for parts in nothing.parts for part in parts] == [0, 0]


def test_padding_falls_when_lengths_are_alike_in_a_micro_step() -> None:
    """E09: in a mix of 10 and 1000 tokens, 8 rows a micro-step, padding nearly doubles the tokens when rows are taken as they come."""
    rng = np.random.default_rng(2)
    lengths = rng.choice(np.asarray([10, 1000], dtype=np.int32), 64)
    dealt = deal(lengths, world_size=2, micro_batch_tokens=8000, attention_share=SHARE, layout="padded")
    dealt_padding = sum(padded_tokens(lengths[part]) for parts in dealt.parts for part in parts) / lengths.sum() - 1
    as_it_comes = sum(padded_tokens(lengths[start : start + 8]) for start in range(0, 64, 8)) / lengths.sum() - 1
    assert as_it_comes > 0.9 and dealt_padding < 0.06


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_a_length_is_no_zero(layout: str) -> None:
    """E09: lengths that nobody counted are an error, not a deal by chance."""
    with pytest.raises(DataError, match="no tokens"):
        deal(np.asarray([5, 0], dtype=np.int32), world_size=1, micro_batch_tokens=64, attention_share=0.0, layout=layout)


def test_a_sample_over_budget_is_refused() -> None:
    with pytest.raises(DataError, match="65 tokens, more than micro_batch_tokens 64"):
        deal(np.asarray([65], dtype=np.int32), world_size=1, micro_batch_tokens=64, attention_share=0.0)


def test_lengths_beyond_sixteen_bits() -> None:
    lengths = np.asarray([100_000, 70_000, 30_000, 66_000, 64_000, 5], dtype=np.int32)
    dealt = deal(lengths, world_size=2, micro_batch_tokens=170_000, attention_share=1.0)
    assert dealt.micro_steps == 1 and max(int(lengths[part].sum()) for parts in dealt.parts for part in parts) <= 170_000


def test_one_deal_takes_no_time_of_an_update() -> None:
    lengths = long_prompts(256, 0)
    taken = []
    # Time on the processor, which a busy machine makes no longer.
    for _ in range(5):
        started = time.thread_time()
        deal(lengths, world_size=8, micro_batch_tokens=4096, attention_share=SHARE)
        taken.append(time.thread_time() - started)
    assert min(taken) < 0.02


def test_sums_by_bin_and_rank() -> None:
    lengths = np.asarray([4, 4, 4, 4, 8], dtype=np.int32)
    dealt = deal_many(lengths, np.asarray([0, 4, 5]), world_size=2, micro_batch_tokens=8, attention_share=0.0)
    assert dealt.first_bins.tolist() == [0, 2, 4] and dealt.micro_steps.tolist() == [1, 1]
    tokens = dealt.bin_sums(lengths)
    assert tokens.tolist() == [8, 8, 8, 0] and dealt.rank_sums(tokens).tolist() == [[8, 8], [8, 0]]
    assert [b - a for a, b in itertools.pairwise(dealt.first_bins.tolist())] == [2, 2]
