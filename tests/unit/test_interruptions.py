from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from ftcore.spec.errors import SpecError
from ftcore.spec.sections import HardwareSection
from launcher.costs.interruptions import Hazard, Work, best_save_steps, broken, saves, unbroken
from launcher.costs.prices import Given, check_given, prices_of, seconds_of

HOUR, DAY = 3600, 86400
WORK = Work(updates=1000, update_s=20, start_s=180, end_s=120, stall_s=5, write_s=60)


class Job:
    """A run on hosts that are taken away, second by second as it would go; nothing of it is the product's arithmetic."""

    def __init__(self, work: Work, hazard: Hazard, save_steps: int, seed: int) -> None:
        self.work, self.hazard, self.save_steps, self.generator = work, hazard, save_steps or work.updates, random.Random(seed)
        self.time, self.count = 0.0, 0
        self.left = self.draw()
        """Seconds of work until the next interruption."""

    def works(self, seconds: float) -> float | None:
        """Passes so many seconds; what of them went by where an interruption came first."""
        if seconds < self.left:
            self.left -= seconds
            self.time += seconds
            return None
        went = self.left
        self.time += went
        self.count += 1
        self.left = self.draw()
        return went

    def draw(self) -> float:
        return self.generator.expovariate(self.hazard.rate)

    def starts(self) -> None:
        while self.works(self.work.start_s) is not None:
            self.time += self.hazard.wait_s

    def run(self) -> float:
        work, whole, done = self.work, 0, 0
        self.starts()
        while True:
            # The save of `done` was begun just now, if it is not `whole` already.
            steps = min(self.save_steps, work.updates - done)
            is_last = done + steps == work.updates
            went = self.works(steps * work.update_s + (work.end_s if is_last else work.stall_s))
            if went is None and is_last:
                return self.time
            if went is None or went >= work.write_s:
                whole = done
            if went is None:
                done += steps
                continue
            self.time += self.hazard.wait_s
            self.starts()
            done = whole

    def run_with_notice(self) -> float:
        """Each interruption saves, waits, and goes on where it was."""
        left = self.work.updates * self.work.update_s + self.work.end_s + saves(self.work.updates, self.save_steps) * self.work.stall_s
        self.starts()
        while (went := self.works(left)) is not None:
            left -= went
            self.time += self.work.write_s + self.hazard.wait_s
            self.starts()
        return self.time


class ElasticJob(Job):
    """As it goes with one host less after each interruption."""

    def run(self) -> float:
        work, whole, done = self.work, 0, 0
        self.starts()
        while True:
            slower = self.hazard.hosts / self.hosts
            steps = min(self.save_steps, work.updates - done)
            is_last = done + steps == work.updates
            went = self.works(steps * work.update_s * slower + (work.end_s if is_last else work.stall_s))
            if went is None and is_last:
                return self.time
            whole = done if went is None or went >= work.write_s else whole
            if went is None:
                done += steps
                continue
            self.starts()
            done = whole

    @property
    def hosts(self) -> int:
        return self.hazard.hosts - self.count

    def draw(self) -> float:
        return self.generator.expovariate(self.hosts * self.hazard.per_host)


def hazard(per_day: float, *, hosts: int = 1, wait_s: float = 300, **how: bool) -> Hazard:
    return Hazard(hosts=hosts, per_host=per_day / DAY, until_replaced_s=wait_s, **how)


@pytest.mark.parametrize(
    ("work", "risk", "save_steps"),
    [
        (WORK, hazard(2, hosts=4), 50),
        (WORK, hazard(0.3), 50),
        (WORK, hazard(40, hosts=2), 50),
        (WORK, hazard(3, wait_s=0), 0),
        (Work(updates=300, update_s=60, start_s=600, end_s=300, stall_s=60, write_s=60), hazard(10, hosts=3, wait_s=900), 10),
    ],
)
def test_expected_and_late_times_are_those_of_a_simulation(work, risk, save_steps):
    jobs = [Job(work, risk, save_steps, seed) for seed in range(3000)]
    times = sorted(job.run() for job in jobs)
    found = broken(work, risk, save_steps)
    assert found.mean_s == pytest.approx(fmean(times), rel=0.02)
    assert found.late_s == pytest.approx(times[int(0.9 * len(times))], rel=0.03)
    assert found.interruptions == pytest.approx(fmean(job.count for job in jobs), rel=0.06, abs=0.01)


@pytest.mark.parametrize(("hosts", "per_day"), [(8, 0.2), (16, 0.2), (32, 0.3)])
def test_elastic_times_are_those_of_a_simulation(hosts, per_day):
    work = Work(updates=1000, update_s=60, start_s=180, end_s=120, stall_s=5, write_s=60)
    risk = hazard(per_day, hosts=hosts, elastic=True)
    times = sorted(ElasticJob(work, risk, 50, seed).run() for seed in range(2000))
    found = broken(work, risk, 50)
    assert found.mean_s == pytest.approx(fmean(times), rel=0.02) and found.late_s == pytest.approx(times[1800], rel=0.04)


def test_an_elastic_run_may_run_out_of_hosts():
    assert broken(WORK, hazard(0.3, hosts=2, elastic=True), 50).late_s < math.inf
    some = broken(WORK, hazard(2.0, hosts=2, elastic=True), 50)
    assert some.mean_s < math.inf and some.late_s == math.inf


def test_thousands_of_elastic_hosts_are_counted_at_once():
    many = broken(WORK, hazard(0.001, hosts=12_500, elastic=True), 50)
    # A thousandth of the hosts is lost by the end, half of that on average.
    assert many.interruptions > 3 and many.mean_s == pytest.approx(many.paid_s, rel=1e-3) and many.mean_s > many.paid_s


def test_with_notice_nothing_is_lost():
    risk = hazard(2, hosts=4, has_notice=True)
    times = sorted(Job(WORK, risk, 50, seed).run_with_notice() for seed in range(3000))
    found = broken(WORK, risk, 50)
    assert found.mean_s == pytest.approx(fmean(times), rel=0.02) and found.late_s == pytest.approx(times[2700], rel=0.02)
    assert found.mean_s < broken(WORK, hazard(2, hosts=4), 50).mean_s and found.lost_s < 60


def test_an_unbroken_run_by_hand():
    found = unbroken(WORK, 100)
    assert saves(1000, 100) == 9 and saves(1000, 0) == 0 and saves(1001, 100) == 10
    assert found.mean_s == found.late_s == found.paid_s == 180 + 1000 * 20 + 9 * 5 + 120
    assert broken(WORK, hazard(0), 100) == found


def test_one_interruption_by_hand():
    # Rate 1 an hour, one stretch of an hour: E = (1/L + D) (e^(L s) - 1), without a start.
    work = Work(updates=1, update_s=HOUR, start_s=0, end_s=0, stall_s=0, write_s=0)
    assert broken(work, hazard(24, wait_s=600), 0).mean_s == pytest.approx((HOUR + 600) * (math.e - 1))


def test_saves_as_often_as_young_and_daly_say():
    work = Work(updates=1000, update_s=20, start_s=600, end_s=120, stall_s=60, write_s=60)
    risk = hazard(30)
    ideal = math.sqrt(2 * 60 * DAY / 30) / 20
    steps = best_save_steps(work, risk)
    assert abs(steps - ideal) <= 1
    best = broken(work, risk, steps).mean_s
    assert all(best <= broken(work, risk, other).mean_s * 1.002 for other in range(5, 120, 5))
    # A save that holds nothing up is made no more often than it takes to write.
    assert best_save_steps(Work(updates=1000, update_s=20, start_s=60, end_s=0, stall_s=0, write_s=90), risk) in (4, 5)
    assert best_save_steps(WORK, hazard(0.001)) == 0 and best_save_steps(WORK, hazard(0)) == 0
    assert best_save_steps(WORK, hazard(2, has_notice=True)) == 0


def test_all_hosts_stop_for_one_unless_the_run_is_elastic():
    alone, together = broken(WORK, hazard(2), 50), broken(WORK, hazard(2, hosts=8), 50)
    assert together.interruptions > 7 * alone.interruptions
    plain, elastic = broken(WORK, hazard(2, hosts=8, wait_s=0), 50), broken(WORK, hazard(2, hosts=8, elastic=True), 50)
    assert elastic.waiting_s == 0 and elastic.paid_s == plain.paid_s and elastic.mean_s > plain.mean_s
    assert broken(WORK, hazard(20, hosts=2, elastic=True), 50).mean_s == math.inf
    assert broken(WORK, hazard(2, elastic=True), 50) == alone
    assert broken(WORK, hazard(2, hosts=2), 50).paid_s < broken(WORK, hazard(2, hosts=2), 50).mean_s


def test_a_run_that_is_always_interrupted_never_ends():
    found = broken(WORK, hazard(10_000, hosts=100), 0)
    assert found.mean_s == found.late_s == found.paid_s == math.inf


def test_prices_are_those_of_the_options_over_the_specs():
    hardware = HardwareSection(price_per_hour=2.5, spot_price_per_hour=0.9, interruptions_per_day=2, currency="EUR")
    assert prices_of(hardware, Given()).missing == () and prices_of(hardware, Given()).currency == "EUR"
    given = prices_of(hardware, Given(price=3, spot_price=1, interruptions_per_day=0, currency="CHF"))
    assert (given.on_demand, given.spot, given.interruptions_per_day, given.currency, given.has_spot) == (3, 1, 0, "CHF", True)
    nothing = prices_of(HardwareSection(), Given())
    assert not nothing.has_spot and "--price" in nothing.missing[0] and nothing.currency == "USD"
    assert "interruptions" in prices_of(HardwareSection(price_per_hour=1, spot_price_per_hour=1), Given()).missing[0]
    assert "--spot-price" in prices_of(HardwareSection(price_per_hour=1, interruptions_per_day=1), Given()).missing[0]


def test_wrong_numbers_are_told_all_at_once():
    with pytest.raises(SpecError) as caught:
        check_given(Given(price=-1, spot_price=math.nan, interruptions_per_day=math.inf, currency=" "), gain=-0.1)
    assert [problem.where for problem in caught.value.problems] == ["--price", "--spot-price", "--interruptions-per-day", "--gain", "--currency"]


def test_durations():
    assert seconds_of("1d", "--deadline") == DAY
    with pytest.raises(SpecError, match="no duration"):
        seconds_of("tomorrow", "--deadline")
    with pytest.raises(SpecError, match="no time at all"):
        seconds_of("0s", "--deadline")
