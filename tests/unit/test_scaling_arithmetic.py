"""The arithmetic of `ftlaunch scale`: strong, weak, baselines, cores, device time, agreement, and what limits."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.scaling.arithmetic import agree, device_minutes, loss_gap, set_against, strong_ratios, weak_ratios
from launcher.scaling.limiting import name_limit
from launcher.scaling.request import WEAK
from tests.unit.scaled import point, result


def test_a_speedup_of_five_thirds_is_120_device_minutes() -> None:
    ratios = strong_ratios(100.0, 1, 60.0, 2)
    assert ratios.speedup == pytest.approx(5 / 3) and ratios.efficiency == pytest.approx(5 / 6)
    assert device_minutes(60.0, 2) == 120.0


def test_weak_scaling_counts_tokens() -> None:
    # Twice the work in the same time is perfect; a rank's rate has not changed.
    assert weak_ratios(1000.0, 1, 2000.0, 2).efficiency == pytest.approx(1.0)
    ratios = weak_ratios(1000.0, 1, 3000.0, 4)
    assert (ratios.speedup, ratios.ideal_speedup, ratios.efficiency) == (3.0, 4.0, 0.75)


def test_a_baseline_of_two_ranks() -> None:
    done = set_against(result(point(2, 10.0), point(4, 6.0), point(8, 4.0)))
    assert [each.speedup for each in done.points] == [1.0, pytest.approx(5 / 3), 2.5]
    assert [each.ideal_speedup for each in done.points] == [1.0, 2.0, 4.0]
    assert [each.efficiency for each in done.points] == [1.0, pytest.approx(5 / 6), 0.625]


def test_a_point_without_numbers_is_no_baseline() -> None:
    broken = dataclasses.replace(point(1), state="failed", update_seconds=None, tokens_per_s=None)
    done = set_against(result(broken, point(2, 10.0), point(4, 5.0)))
    assert done.baseline(2).ranks == 2 and done.points[0].speedup is None and done.points[2].efficiency == 1.0


def test_each_stage_has_its_own_baseline() -> None:
    done = set_against(result(point(1, 4.0, stage=0), point(2, 2.0, stage=0), point(1, 8.0, stage=3), point(2, 5.0, stage=3)))
    assert [each.efficiency for each in done.points] == [1.0, 1.0, 1.0, 0.8]


def test_ranks_that_share_cores_are_measured_by_cores() -> None:
    done = set_against(result(point(1, 4.0, cores=1), point(2, 2.0, cores=2), point(8, 2.5, cores=2, oversubscribed=True)))
    assert [each.normalised_efficiency for each in done.points] == [1.0, 1.0, 0.8]
    assert [each.efficiency for each in done.points] == [1.0, 1.0, pytest.approx(0.2)]


def test_weak_points_are_measured_by_rate() -> None:
    done = set_against(result(point(1, 1.0, tokens=1000.0), point(4, 1.25, tokens=4000.0), mode=WEAK))
    assert done.points[1].speedup == pytest.approx(3.2) and done.points[1].efficiency == pytest.approx(0.8)


@given(st.floats(1e-3, 1e3), st.integers(1, 64), st.floats(1e-3, 1e3), st.integers(1, 64))
def test_efficiency_is_device_time_saved(base_s: float, base: int, seconds: float, ranks: int) -> None:
    # Whatever the baseline: efficiency is the baseline's device time over the point's.
    assert strong_ratios(base_s, base, seconds, ranks).efficiency == pytest.approx(device_minutes(base_s, base) / device_minutes(seconds, ranks))


def test_losses_that_agree_and_that_do_not() -> None:
    near = point(2, losses=(2.0 * (1 + 5e-6), 1.5))
    done = agree(result(point(1), near), 1e-5)
    assert done.agreement.passed and done.agreement.largest_loss_gap == pytest.approx(5e-6) and done.agreement.reference == "w1-zero2"
    assert [each.loss_gap for each in done.points] == [0.0, pytest.approx(5e-6)]
    far = agree(result(point(1), near, point(4, losses=(2.0, 1.5 * (1 + 2e-5)))), 1e-5)
    assert not far.agreement.passed and far.agreement.largest_loss_gap == pytest.approx(2e-5)


@pytest.mark.parametrize("losses", [(), (2.0,), (2.0, None), (2.0, math.inf)])
def test_losses_that_can_not_be_compared_do_not_agree(losses: tuple[float | None, ...]) -> None:
    done = agree(result(point(1), point(2, losses=losses)), 1e-5)
    assert loss_gap(losses, (2.0, 1.5)) is None
    assert done.agreement.largest_loss_gap is None and not done.agreement.passed


def test_nothing_is_compared_in_weak_mode_or_with_one_point() -> None:
    assert agree(result(point(1), point(2), mode=WEAK), 1e-5).agreement is None
    assert agree(result(point(1)), 1e-5).agreement is None
    assert agree(result(), 1e-5).agreement is None


def limited(ranks: int, seconds: float, phases: dict[str, float], **more: object) -> str:
    base = point(1, 10.0, phases={"forward": 4.0, "backward": 6.0}, row_tokens=500.0)
    done = set_against(result(base, point(ranks, seconds, phases=phases, row_tokens=500.0, **more)))
    return name_limit(done.points[1], done.points[0])


def test_what_limits_is_named() -> None:
    assert limited(2, 5.1, {"forward": 2.0, "backward": 3.0, "communication": 0.1}) == "nothing: it scales"
    assert limited(2, 8.0, {"forward": 2.0, "backward": 3.0, "communication": 2.5, "idle": 0.5}) == "communication (83% of the time lost)"
    late = limited(2, 8.0, {"forward": 2.0, "backward": 3.0, "communication": 0.5, "idle": 2.5}, late_rank="rank 1 on b, late in forward")
    assert late == "idle by imbalance: ranks wait for a later one (most of all for rank 1 on b, late in forward) (83% of the time lost)"
    assert limited(2, 8.0, {"forward": 2.0, "backward": 3.0, "data_wait": 3.0}).startswith("data: ")
    assert limited(2, 8.0, {"forward": 2.0, "backward": 3.0, "other": 3.0}).startswith("the host: ")
    assert limited(2, 8.0, {"forward": 3.0, "backward": 5.0}).startswith("computing: a rank is slower beside others")
    assert limited(2, 8.0, {"forward": 3.0, "backward": 5.0}, held_up_seconds=2.0).startswith("computing: ranks stand still 25% of the time, since")


def test_smaller_micro_steps_are_named() -> None:
    base = point(1, 10.0, phases={"forward": 10.0}, row_tokens=500.0)
    done = set_against(result(base, point(2, 8.0, phases={"forward": 8.0}, row_tokens=250.0)))
    assert "250 tokens against 500" in name_limit(done.points[1], done.points[0])


def test_oversubscription_is_named_first() -> None:
    text = limited(4, 10.0, {"forward": 4.0, "backward": 4.0, "communication": 2.0}, cores=2, threads=1, oversubscribed=True)
    assert text == "oversubscription: 4 ranks share 2 cores; beside that communication (20% of an update)"
    assert (
        limited(4, 8.0, {"forward": 4.0, "backward": 4.0}, cores=1, threads=2, oversubscribed=True) == "oversubscription: 4 ranks, 2 threads each, share 1 core"
    )


def test_a_baseline_says_what_it_does() -> None:
    alone = point(1, 10.0, phases={"forward": 4.0, "backward": 6.0})
    assert name_limit(alone, alone) == "computing"
    waits = point(1, 10.0, phases={"forward": 3.0, "backward": 4.0, "data_wait": 3.0})
    assert name_limit(waits, waits) == "computing (70% of an update); beside that data: the ranks wait for their samples (30% of an update)"
    most = point(1, 10.0, phases={"forward": 2.0, "backward": 2.0, "data_wait": 6.0})
    assert name_limit(most, most) == "data: the ranks wait for their samples (60% of an update)"
    crowd = point(4, 10.0, phases={"forward": 6.0, "idle": 4.0}, oversubscribed=True, cores=2)
    assert name_limit(crowd, crowd).startswith("oversubscription: 4 ranks share 2 cores; beside that idle")
