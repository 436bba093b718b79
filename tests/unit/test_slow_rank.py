"""The watch for slow ranks, fed stretches made by hand: who is named, for what, how often, and who is not."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest

from ftcore.attribution.charge import excess
from ftcore.attribution.phases import BUSY
from ftcore.attribution.told import RankPhases, ToldPhases
from ftcore.diagnostics.findings import Finding
from ftcore.diagnostics.slow_rank import SlowRankWatch
from ftcore.diagnostics.standing_out import ahead_of_others, chance, standing_out
from ftcore.spec.run_lines import PHASES

USUAL = {"data_wait": 0.001, "forward": 0.05, "backward": 0.1, "optimizer": 0.02, "other": 0.003}


def stretch(
    world_size: int, more: dict[tuple[int, str], float], *, noise: random.Random | None = None, held: float = 0.0, costs: tuple[float, ...] = ()
) -> ToldPhases:
    """One update in which (rank, phase) took so much longer, with noise of 5 % and ranks held up at random for up to `held` seconds."""
    ranks = []
    for rank in range(world_size):
        busy = dict.fromkeys(BUSY, 0.0)
        held_up = dict.fromkeys(BUSY, 0.0)
        for phase in BUSY:
            scatter = 1 + (noise.gauss(0, 0.05) if noise else 0.0)
            held_up[phase] = noise.random() * held if noise and phase in ("forward", "backward") else 0.0
            busy[phase] = USUAL.get(phase, 0.0) * scatter + more.get((rank, phase), 0.0) + held_up[phase]
        phases = {name: busy.get(name, 0.0) for name in PHASES}
        caused = {phase: seconds * (world_size - 1) for (late, phase), seconds in more.items() if late == rank}
        ranks.append(
            RankPhases(
                rank=rank,
                host=f"host{rank // 2}",
                phases=phases,
                phase_seconds=sum(busy.values()),
                caused_idle_seconds=sum(caused.values()),
                late_phase=max(caused, key=caused.__getitem__) if caused else "",
                caused_by_phase=caused,
                held_up=held_up,
                cost=costs[rank] if costs else 100.0,
            )
        )
    return ToldPhases(ranks=tuple(ranks), updates=1)


def watched(stretches: list[ToldPhases]) -> list[Finding]:
    watch = SlowRankWatch()
    return [finding for update, told in enumerate(stretches, start=1) for finding in watch.feed(update, told)]


@pytest.mark.parametrize("phase", ["data_wait", "forward", "backward", "optimizer", "other"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_a_slow_rank_is_named_once(world_size: int, phase: str) -> None:
    noise = random.Random(1)
    [finding] = watched([stretch(world_size, {(1, phase): 0.03}, noise=noise, held=0.1) for _ in range(60)])
    assert finding.kind == "slow_rank"
    record = finding.to_record()
    assert (record["rank"], record["phase"], record["host"]) == (1, phase, "host0")
    assert record["cause"] == {"data_wait": "data_wait", "other": "process"}.get(phase, "device")
    assert 0 < record["share"] < 1
    assert finding.update <= 25
    assert "rank 1 on host0" in finding.text() and "Check first" in finding.text()


@pytest.mark.parametrize("world_size", [2, 4, 16])
def test_noise_names_nobody(world_size: int) -> None:
    """Held up by turns for as long as an update takes: no false alarm in 20 runs of 200 updates."""
    for seed in range(20):
        noise = random.Random(seed)
        assert not watched([stretch(world_size, {}, noise=noise, held=0.3) for _ in range(200)])


def test_who_is_held_up_for_long_is_not_slow() -> None:
    """Another process on its processor is no fault of the rank: its own work takes as long as ever."""
    noise = random.Random(1)
    told = [stretch(2, {}, noise=noise) for _ in range(40)]
    for each in told:
        each.ranks[1].held_up["forward"] += 0.2
        each.ranks[1].phases["forward"] += 0.2
    assert not watched(told)


def test_more_work_is_told_apart_from_a_slow_device() -> None:
    costs = (100.0, 150.0)
    [dealt] = watched([stretch(2, {(1, "forward"): 0.025, (1, "backward"): 0.05}, costs=costs) for _ in range(30)])
    [slow] = watched([stretch(2, {(1, "forward"): 0.025, (1, "backward"): 0.05}) for _ in range(30)])
    assert (dealt.facts["cause"], slow.facts["cause"]) == ("data", "device")
    assert "dealt 1.50 times" in dealt.text()


def test_a_change_is_told_and_a_return_too() -> None:
    slow = [stretch(2, {(1, "data_wait"): 0.05}) for _ in range(30)]
    other = [stretch(2, {(1, "forward"): 0.05}) for _ in range(30)]
    none = [stretch(2, {}) for _ in range(40)]
    assert [finding.facts["phase"] for finding in watched(slow + other)] == ["data_wait", "forward"]
    assert [finding.facts["phase"] for finding in watched(slow + none + slow)] == ["data_wait", "data_wait"]
    moved = watched(slow + [stretch(2, {(0, "data_wait"): 0.05}) for _ in range(40)])
    assert [finding.facts["rank"] for finding in moved] == [1, 0]


@pytest.mark.parametrize(("phase", "more"), [("checkpoint", 0.4), ("evaluation", 0.2)])
def test_slow_at_checkpoints_or_evaluations_alone(phase: str, more: float) -> None:
    told = []
    for update in range(1, 61):
        due = update % 10 == 0
        told.append(stretch(4, {**{(rank, phase): 0.3 for rank in range(4)}, (2, phase): 0.3 + more} if due else {}))
    [finding] = watched(told)
    assert (finding.facts["rank"], finding.facts["phase"], finding.facts["cause"]) == (2, phase, phase)


def test_what_rank_0_does_for_all_at_a_checkpoint_is_no_finding() -> None:
    assert not watched([stretch(2, {(0, "checkpoint"): 0.1, (1, "checkpoint"): 0.03}) for _ in range(30)])


def test_two_slow_ranks_name_the_slower_one() -> None:
    [finding] = watched([stretch(8, {(3, "forward"): 0.03, (5, "forward"): 0.04}) for _ in range(30)])
    assert finding.facts["rank"] == 5


def test_one_rank_is_never_slow() -> None:
    assert not watched([stretch(1, {}) for _ in range(30)])


def test_little_is_not_worth_telling() -> None:
    assert not watched([stretch(2, {(1, "forward"): 0.005}) for _ in range(60)])


def test_chance() -> None:
    assert chance(0, 5) == 1.0
    assert chance(5, 5) == 1 / 32
    assert standing_out([[-1.0, 1.0]] * 3, least=0.1, fewest=4) == []
    assert standing_out([[-1.0, 1.0]] * 4, least=0.1, fewest=4) == [1]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
def test_ahead_of_the_median_of_the_others(count: int) -> None:
    draws = random.Random(count)
    values = [draws.choice([1.0, 2.0, draws.random()]) for _ in range(count)]
    expected = [value - statistics.median(values[:rank] + values[rank + 1 :]) for rank, value in enumerate(values)]
    assert ahead_of_others(values) == pytest.approx(expected)
    assert excess(np.array([values]).T)[:, 0] == pytest.approx(expected)
