from __future__ import annotations

import dataclasses
import json
import math

import pytest

from ftcore.spec.errors import DoesNotFitError, SpecError
from ftcore.spec.resolved import Host
from ftcore.spec.scale_result import ScalePoint, ScaleResult
from launcher.costs.candidates import Candidate, parse_ranks
from launcher.costs.copy_line import Asked, copy_line, restarts
from launcher.costs.overheads import LEAST_STALL_S, GivenTimes, Overheads, Sizes, overhead_notes, overheads_of
from launcher.costs.plan_facts import finite, planning_facts
from launcher.costs.plan_text import money, render_planning, span
from launcher.costs.planner import LIKELY, NO, ON_DEMAND, SPOT, YES, Terms, ordered, plans_of
from launcher.costs.planning import Question, make_planning
from launcher.costs.prices import Given, Prices
from launcher.memory.cost import run_data
from tests.unit.planned_runs import llama, run

HOUR = 3600
NOTHING = Overheads(start_s=0, write_s=0, stall_s=0, export_s=0)
PRICES = Prices(on_demand=1.0, spot=0.25, interruptions_per_day=2.0, currency="EUR")


def candidate(ranks: int, minutes: float, **more) -> Candidate:
    """A run of 100 updates that take so many minutes together."""
    update_s = minutes * 60 / 100
    known = {"ranks": ranks, "hosts": 1, "stage": 2, "label": "ZeRO-2", "changes": {}, "updates": 100, "update_s": update_s}
    known |= {"low_s": update_s * 0.9, "high_s": update_s * 1.1, "supervised_tokens": 4e6, "origin": "measured"}
    return Candidate(**(known | more))


def terms(**more) -> Terms:
    return Terms(**({"prices": PRICES, "save_steps": 0, "wait_s": 300.0} | more))


def test_device_time_and_price_by_hand():
    # L05's kin: 100 minutes on one device, 60 on two: a speedup of 5/3, and 120 device-minutes, not 60.
    one, two = (plans_of(candidate(ranks, minutes), NOTHING, terms())[0] for ranks, minutes in ((1, 100), (2, 60)))
    assert one.time_s.expected / two.time_s.expected == pytest.approx(5 / 3)
    assert two.device_hours.expected * 60 == pytest.approx(120) and one.device_hours.expected * 60 == pytest.approx(100)
    assert one.price.expected == pytest.approx(100 / 60) and two.price.expected == pytest.approx(2.0)
    # 2.00 EUR for 4 million supervised tokens.
    assert two.per_million == pytest.approx(0.5)
    assert two.time_s.low == pytest.approx(54 * 60) and two.price.high == pytest.approx(2.2)


def test_the_cheapest_plan_that_meets_the_deadline_is_first():
    ways = [candidate(1, 600), candidate(2, 320), candidate(8, 90)]
    asked = terms(deadline_s=4 * HOUR, prices=dataclasses.replace(PRICES, interruptions_per_day=0.1))
    plans = ordered(plan for way in ways for plan in plans_of(way, NOTHING, asked))
    # One and two ranks are too slow; of eight the spot hosts cost a quarter.
    assert (plans[0].candidate.ranks, plans[0].market, plans[0].meets) == (8, SPOT, YES)
    assert [plan.meets for plan in plans] == [YES, YES, NO, NO, NO, NO]
    assert [plan.time_s.expected for plan in plans[2:]] == sorted(plan.time_s.expected for plan in plans[2:])
    free = ordered(plan for way in ways for plan in plans_of(way, NOTHING, terms()))
    assert [plan.price.expected for plan in free] == sorted(plan.price.expected for plan in free) and free[0].meets is None


def test_a_deadline_between_expected_and_late_is_only_likely_met():
    plan = plans_of(candidate(1, 100), NOTHING, terms(deadline_s=105 * 60))[0]
    assert plan.meets == LIKELY
    assert plans_of(candidate(1, 100), NOTHING, terms(deadline_s=111 * 60))[0].meets == YES
    assert plans_of(candidate(1, 100), NOTHING, terms(deadline_s=99 * 60))[0].meets == NO


def test_spot_plans_carry_what_interruptions_cost():
    way, beside = candidate(8, 2400, hosts=4), Overheads(start_s=300, write_s=30, stall_s=10, export_s=60)
    demand, spot = plans_of(way, beside, terms(save_steps=90))
    assert (demand.market, spot.market, demand.save_steps) == (ON_DEMAND, SPOT, 90)
    assert demand.time_s.expected == 300 + 2400 * 60 + 10 + 30 + 60 and demand.late_s == demand.time_s and demand.interruptions == 0
    assert spot.save_steps < 90 and spot.as_written_s > spot.time_s.expected > demand.time_s.expected
    assert spot.late_s.expected > spot.time_s.expected and spot.time_s.low < spot.time_s.expected < spot.time_s.high
    assert spot.interruptions == pytest.approx(4 * 2 * spot.time_s.expected / 86400, rel=0.05)
    # While one host of four is waited for the other three are paid.
    assert spot.price.expected == pytest.approx(0.25 * spot.device_hours.expected)
    assert spot.device_hours.expected == pytest.approx(8 * (spot.time_s.expected - spot.interruptions * 300 / 4) / HOUR)
    assert plans_of(way, beside, terms(save_steps=spot.save_steps))[1].as_written_s is None
    noticed = plans_of(way, beside, terms(save_steps=90, has_notice=True))[1]
    assert noticed.save_steps == 90 and noticed.time_s.expected < spot.time_s.expected and noticed.lost_s < 60


def test_saves_on_demand_hold_up_one_percent_at_most():
    way, beside = candidate(1, 1000), Overheads(start_s=0, write_s=60, stall_s=60, export_s=0)
    # An update takes 600 s: a save every 10 of them is 1 %.
    assert plans_of(way, beside, terms(save_steps=10))[0].save_steps == 10 and plans_of(way, beside, terms(save_steps=0))[0].save_steps == 0
    often = plans_of(way, beside, terms(save_steps=2))[0]
    assert often.save_steps == 10 and often.as_written_s - often.time_s.expected == pytest.approx((49 - 9) * 60)
    assert plans_of(candidate(1, 10), beside, terms(save_steps=2))[0].save_steps == 0


def test_without_prices_plans_are_by_time():
    bare = terms(prices=Prices(on_demand=None, spot=None, interruptions_per_day=None, currency="USD"), deadline_s=3 * HOUR)
    plans = ordered(plan for way in (candidate(1, 100), candidate(2, 60)) for plan in plans_of(way, NOTHING, bare))
    assert [plan.candidate.ranks for plan in plans] == [2, 1] and plans[0].price is None and plans[0].per_million is None and plans[0].meets == YES


def test_overheads_are_counted_from_sizes_and_say_so():
    sizes = Sizes(model=16_000_000_000, checkpoint=96_000_000_000, exported=16_000_000_000, saves_async=True)
    way = candidate(16, 100, hosts=2)
    found = overheads_of(sizes, way, GivenTimes(), ())
    assert found.start_s == 120 + 16 and found.write_s == 48 and found.export_s == 16
    # An update takes 60 s: the save is written before the next step comes.
    assert found.stall_s == LEAST_STALL_S
    quick = overheads_of(sizes, dataclasses.replace(way, update_s=12), GivenTimes(), ())
    assert quick.stall_s == pytest.approx(LEAST_STALL_S + 0.75 * 96 / (5 * 16))
    waits = overheads_of(dataclasses.replace(sizes, saves_async=False), way, GivenTimes(save_s=7, start_s=3), ())
    assert (waits.stall_s, waits.write_s, waits.start_s) == (7, 7, 3)
    notes = overhead_notes(sizes, GivenTimes(), (), spot=True, wait_s=300)
    assert len(notes) == 4 and all("assumed" in note for note in notes)
    said = overhead_notes(sizes, GivenTimes(start_s=9, save_s=8, wait_s=7), (), spot=True, wait_s=7)
    assert "--start-time" in said[0] and "--save-time" in said[1] and "--wait-time" in said[3]


def test_ranks_are_numbers():
    assert parse_ranks("16, 8,8") == (8, 16)
    for text in ("", "8,", "a", "0", "-1", "1e3", "99999999", "８"):
        with pytest.raises(SpecError, match="no numbers of ranks"):
            parse_ranks(text)


def test_the_line_to_copy():
    plan = plans_of(candidate(16, 2000, hosts=2, changes={"zero.stage": "3"}), NOTHING, terms(prices=dataclasses.replace(PRICES, interruptions_per_day=20)))[1]
    plan = dataclasses.replace(plan, save_steps=7)
    asked = Asked(spec="my spec.yaml", zero=2, sets=("train.max_steps=5", "zero.stage=2"), own_hosts=(8,), gpus_per_node=8)
    line, hint = copy_line(plan, asked)
    head = "ftlaunch launch 'my spec.yaml' --hosts HOSTFILE --set train.max_steps=5 --zero 3 --set checkpoint.save_steps=7 --max-restarts "
    assert line == f"{head}{restarts(plan.interruptions)}" and hint == "HOSTFILE: 2 hosts with slots=8"
    own, hint = copy_line(plan, dataclasses.replace(asked, own_hosts=(8, 8), hosts="h.txt", elastic=True, is_local=False))
    assert "--hosts h.txt" in own and own.endswith("--elastic") and hint == ""
    filtered = dataclasses.replace(asked, own_hosts=(8, 8), hosts="h.txt", is_local=False, include="a@b", exclude="c:0")
    assert " --hosts h.txt --include a@b --exclude c:0 " in copy_line(plan, filtered)[0]
    assert "--include" not in copy_line(plan, dataclasses.replace(filtered, own_hosts=(4, 4)))[0]
    small = plans_of(candidate(4, 10), NOTHING, terms())[0]
    assert copy_line(small, Asked(own_hosts=(2,))) == ("ftlaunch launch --set cluster.slots=4", "")
    assert copy_line(small, Asked(own_hosts=(4,), zero=1)) == ("ftlaunch launch --zero 1", "")
    assert copy_line(dataclasses.replace(small, candidate=candidate(11, 1, hosts=2)), Asked())[1] == "HOSTFILE: 1 host with slots=8 and one with slots=3"
    assert "--hosts HOSTFILE" in copy_line(small, Asked(hosts="h.txt", is_local=False, own_hosts=(8,)))[0]
    assert restarts(math.inf) == 1000 and restarts(0.02) == 2


def question(**more) -> Question:
    hardware = {"accelerator": "h100-80", "price_per_hour": 2.5, "spot_price_per_hour": 0.9, "interruptions_per_day": 2.0, "currency": "EUR"}
    known = {"resolved": run(ranks=8, method="lora", **hardware), "origin": "spec.yaml", "shape": llama(), "given": Given(), "times": GivenTimes()}
    return Question(**(known | more))


def test_a_planning_from_a_spec():
    found = make_planning(question(ranks=(8, 16), deadline_s=24 * HOUR))
    assert {plan.candidate.ranks for plan in found.plans} == {8, 16} and {plan.market for plan in found.plans} == {ON_DEMAND, SPOT}
    assert found.best.meets == YES and found.best.market == SPOT
    # A speed that may be a third off is that much faster or slower: seconds divided or multiplied.
    assert all(each.low_s * each.high_s == pytest.approx(each.update_s**2) for each in (plan.candidate for plan in found.plans))
    assert found.best.price.expected == min(plan.price.expected for plan in found.plans if plan.meets == YES)
    text = render_planning(found, Asked(spec="spec.yaml", own_hosts=(8,)))
    assert "The cheapest plan that meets 24 h: " in text and "ftlaunch launch spec.yaml" in text and " EUR" in text and "USD" not in text
    assert "interruptions: 2 a day" in text and "Young and Daly" in text and "simulated for h100-80" in text and "more plans" in text
    facts = planning_facts(found, Asked(spec="spec.yaml", own_hosts=(8,)))
    assert json.loads(json.dumps(facts, allow_nan=False))["deadline_met"] is True
    first = facts["plans"][0]
    assert first["time_s"]["low"] < first["time_s"]["expected"] < first["time_s"]["high"] and first["command"].startswith("ftlaunch launch spec.yaml")
    every = render_planning(found, Asked(), everything=True)
    assert every.count("\n") > text.count("\n") and "more plans" not in every
    assert max(len(line) for line in every.splitlines() if not line.startswith("    ")) <= 100
    head = next(line for line in text.splitlines() if line.startswith("ranks  market"))
    assert "how, tokens a micro-step" in head and head.endswith("a million EUR")


def test_ranks_on_cpus_are_on_one_host_also_those_that_were_measured(tmp_path):
    one = dataclasses.replace(run(), hosts=(Host(name="localhost", slots=1),))
    points = [ScalePoint(name=f"w{ranks}", ranks=ranks, stage=2, hosts={}, state="measured", tokens_per_s=100.0 * ranks) for ranks in (1, 4)]
    made = ScaleResult(spec="s", model="owner/model", mode="strong", precision="bf16", warm_up=1, windows=3, updates=9, points=tuple(points))
    (tmp_path / "scale.json").write_text(made.to_json())
    small = llama(layers=2, hidden=512, intermediate=1024)
    found = make_planning(question(resolved=one, shape=small, gpu="cpu", measured=(tmp_path,)))
    assert {(plan.candidate.ranks, plan.candidate.hosts) for plan in found.plans} == {(1, 1), (4, 1)}
    assert found.gpus_per_node == 4 and {plan.candidate.origin for plan in found.plans} == {"measured"}


def test_evaluations_are_in_a_plans_time(monkeypatch):
    base = question(ranks=(8,))
    known = run_data(base.resolved)
    plain, evaluated = [], []
    for tokens, plans in ((0.0, plain), (known.train.mean * 1000, evaluated)):
        data = dataclasses.replace(known, evaluated_tokens=tokens)
        monkeypatch.setattr("launcher.costs.planning.run_data", lambda resolved, data=data: data)
        plans += [plan for plan in make_planning(base).plans if plan.market == ON_DEMAND]
    assert all(after.time_s.expected > before.time_s.expected for before, after in zip(plain, evaluated, strict=True))


def test_a_deadline_that_nothing_meets():
    found = make_planning(question(ranks=(8,), deadline_s=60.0))
    assert found.best.meets == NO and found.best.time_s.expected == min(plan.time_s.expected for plan in found.plans)
    text = render_planning(found, Asked())
    assert "No plan meets 60 s. The fastest: " in text and "What to do: give it " in text and "--ranks 16" in text
    assert planning_facts(found, Asked())["deadline_met"] is False


def test_a_deadline_that_is_only_likely_met():
    base = question(ranks=(8,))
    train = dataclasses.replace(base.resolved.spec.train, max_steps=100_000)
    base = dataclasses.replace(base, resolved=dataclasses.replace(base.resolved, spec=dataclasses.replace(base.resolved.spec, train=train)))
    fastest = min(plan.time_s.expected for plan in make_planning(base).plans)
    text = render_planning(make_planning(dataclasses.replace(base, deadline_s=fastest * 1.05)), Asked())
    assert "for sure" in text and "--measured" in text


def test_runs_that_never_end_are_told_without_numbers():
    often = make_planning(question(ranks=(16,), given=Given(interruptions_per_day=10_000)))
    spot = next(plan for plan in often.plans if plan.market == SPOT)
    assert spot.time_s.expected == math.inf
    assert "never ends" in render_planning(often, Asked(), everything=True)
    assert json.loads(json.dumps(planning_facts(often, Asked()), allow_nan=False))["plans"][-1]["time_s"]["expected"] is None
    late = make_planning(question(ranks=(16,), deadline_s=1.0, given=Given(interruptions_per_day=10_000)))
    assert "No plan meets" in render_planning(late, Asked())


def test_what_does_not_fit_is_told():
    full = run(ranks=1, stage=0, budget=2048, accelerator="t4", host_memory=2**34)
    with pytest.raises(DoesNotFitError, match="1 ranks: "):
        make_planning(question(resolved=full, ranks=(1,)))
    with pytest.raises(SpecError, match="the accelerator is not known"):
        make_planning(question(resolved=run(nodes=2)))


def test_usual_ranks_end_where_an_update_has_no_more_samples():
    found = make_planning(question(resolved=run(ranks=8, method="lora", samples=16, accelerator="h100-80")))
    assert sorted({plan.candidate.ranks for plan in found.plans}) == [1, 2, 4, 8, 16]


def test_money_and_numbers_that_json_lacks():
    assert money(12345.6, "EUR") == "12,346 EUR" and money(1.234, "USD") == "1.23 USD" and money(0.0123, "USD") == "0.012 USD"
    assert money(math.inf, "USD") == "-"
    assert [span(*pair) for pair in ((11 * 60, 17 * 60), (3 * 3600, 3.5 * 3600), (5, 8), (86400, 40 * 86400), (86400, 90_000), (1, math.inf))] == [
        *("11.0 - 17.0 min", "3.0 - 3.5 h", "5.0 - 8.0 s", "1 - 40 d", "24 - 25 h", ""),
    ]
    assert finite({"a": [math.nan, 1, (math.inf,)], "b": "x"}) == {"a": [None, 1, [None]], "b": "x"}
