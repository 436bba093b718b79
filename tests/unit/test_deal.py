"""Deal: each sample once, no micro-step over budget, the same number of micro-steps on each rank."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcore.batch.deal import deal, sample_costs
from ftcore.spec.errors import DataError

lengths_lists = st.lists(st.integers(1, 64), min_size=1, max_size=60)


@given(lengths=lengths_lists, world_size=st.sampled_from([1, 2, 3, 4, 8]), budget=st.integers(64, 300))
def test_deal_is_a_partition_within_budget(lengths: list[int], world_size: int, budget: int) -> None:
    array = np.asarray(lengths, dtype=np.int32)
    dealt = deal(array, world_size=world_size, micro_batch_tokens=budget, attention_share=0.001)
    assert len(dealt.parts) == world_size
    assert {len(parts) for parts in dealt.parts} == {dealt.micro_steps}
    everything = np.concatenate([part for parts in dealt.parts for part in parts])
    assert sorted(everything.tolist()) == list(range(len(lengths)))
    assert max(int(array[part].sum()) for parts in dealt.parts for part in parts) <= budget


@given(lengths=lengths_lists, budget=st.integers(64, 300))
def test_deal_is_pure(lengths: list[int], budget: int) -> None:
    array = np.asarray(lengths, dtype=np.int32)
    one, two = (deal(array, world_size=4, micro_batch_tokens=budget, attention_share=0.001) for _ in range(2))
    assert [[part.tolist() for part in parts] for parts in one.parts] == [[part.tolist() for part in parts] for parts in two.parts]


def test_balance_on_a_long_tailed_mix() -> None:
    array = np.random.default_rng(0).lognormal(5, 0.8, 256).clip(8, 2000).astype(np.int32)
    dealt = deal(array, world_size=8, micro_batch_tokens=4096, attention_share=1 / (12 * 576))
    costs = sample_costs(array, 1 / (12 * 576))
    per_rank = np.asarray([sum(costs[part].sum() for part in parts) for parts in dealt.parts])
    assert per_rank.max() / per_rank.mean() < 1.02


def test_best_fit_where_balance_would_overflow() -> None:
    # Longest-first on the emptiest bin puts 6 and 5 apart and strands the last sample; best fit needs no third step.
    array = np.asarray([6, 5, 3, 2, 2, 2], dtype=np.int32)
    dealt = deal(array, world_size=2, micro_batch_tokens=10, attention_share=0.0)
    assert dealt.micro_steps == 1


def test_a_rank_without_work_gets_fillers() -> None:
    dealt = deal(np.asarray([5], dtype=np.int32), world_size=4, micro_batch_tokens=64, attention_share=0.0)
    assert [len(parts[0]) for parts in dealt.parts] == [1, 0, 0, 0]


def test_a_sample_over_budget_is_refused() -> None:
    with pytest.raises(DataError, match="65 tokens, more than micro_batch_tokens 64"):
        deal(np.asarray([65], dtype=np.int32), world_size=1, micro_batch_tokens=64, attention_share=0.0)
