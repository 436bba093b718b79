from __future__ import annotations

import dataclasses
import json
import math
import random
from statistics import pstdev

import pytest

from ftcore.spec.evaluation_forecast import ENDED, FORECAST, RISING, TOO_FEW, forecast, forecast_history
from ftcore.spec.evaluation_history import EvaluationHistory, StopRule, evaluation_history, rising_since
from ftcore.spec.learning_rate import LearningClock, learning_rate_factor
from ftcore.spec.run_record import read_run
from ftcore.spec.saturating_curve import LEAST_POINTS, draw_curves, quantile
from ftcore.spec.sections import ScheduleSection

TOTAL = 1000


def made(loss_at, *, count=10, noise=0.0, seed=0, eval_steps=50, **rule):
    generator = random.Random(seed)
    points = [(eval_steps * number, loss_at(eval_steps * number) + generator.gauss(0, noise)) for number in range(1, count + 1)]
    return EvaluationHistory(
        metric="loss",
        points=((0, 3.0), *points),
        total_updates=TOTAL,
        eval_steps=eval_steps,
        warmup=30,
        schedule=ScheduleSection(lr_scheduler_type="constant_with_warmup"),
        rule=StopRule(**rule),
    )


def power(update):
    return 1.2 + 0.5 * (update / 50) ** -0.7


def drawn_truth(generator):
    """A curve of one of four forms, two of which the fit does not have, as a function of the update."""
    end, fall, kind = generator.uniform(0.8, 2), generator.uniform(0.1, 1), generator.randrange(4)
    if kind == 0:
        exponent = generator.uniform(0.2, 1.5)
        return lambda update: end + fall * (update / 50) ** -exponent
    if kind == 1:
        tau = generator.uniform(80, 600)
        return lambda update: end + fall * math.exp(-update / tau)
    if kind == 2:
        tau, bend = generator.uniform(80, 500), generator.uniform(0.6, 1.3)
        return lambda update: end + fall * math.exp(-((update / tau) ** bend))
    exponent, offset = generator.uniform(0.3, 2), generator.uniform(20, 400)
    return lambda update: end + fall * (1 + update / offset) ** -exponent


def test_the_interval_holds_the_truth_as_often_as_it_says():
    generator, held, fell, trials = random.Random(7), 0, 0, 100
    for _ in range(trials):
        loss_at, noise = drawn_truth(generator), generator.choice([0.001, 0.005, 0.02])
        history = made(loss_at, count=generator.choice([5, 6, 8, 12]), noise=noise, seed=generator.randrange(10**6))
        curves, last = draw_curves(history.points[1:], TOTAL, count=200), history.points[-1][0]
        ends, falls = [curve.end for curve in curves], [curve.at(last) - curve.end for curve in curves]
        held += quantile(ends, 0.05) <= loss_at(TOTAL) <= quantile(ends, 0.95)
        fell += quantile(falls, 0.05) <= loss_at(last) - loss_at(TOTAL) <= quantile(falls, 0.95)
    assert 0.8 <= held / trials <= 0.97
    assert 0.8 <= fell / trials <= 0.99


def test_curves_that_stray_go_through_what_was_seen():
    """Without noise all that is uncertain lies behind the last point: what is still to fall is up to 15 % off (a standard deviation)."""
    history = made(lambda update: 1 + 2 * math.exp(-update / 300), count=12)
    curves, fall = draw_curves(history.points[1:], TOTAL), 2 * math.exp(-2) - 2 * math.exp(-TOTAL / 300)
    assert all(curve.at(update) == pytest.approx(1 + 2 * math.exp(-update / 300), abs=0.01) for curve in curves for update in (50, 300, 600))
    assert all(curve.at(TOTAL) == pytest.approx(curve.end) for curve in curves)
    assert [pstdev(curve.at(600) - curve.end for curve in curves), pstdev(curve.end for curve in curves)] == pytest.approx([0.15 * fall] * 2, rel=0.1)


def test_the_interval_of_a_forecast_is_of_what_will_be_measured():
    generator, held, trials = random.Random(11), 0, 12
    for seed in range(trials):
        found = forecast_history(made(power, count=8, noise=0.01, seed=seed), gain=0.0)
        held += found.final.low <= power(TOTAL) + generator.gauss(0, 0.01) <= found.final.high
    assert held >= 9


def test_a_clean_curve_is_continued():
    found = forecast_history(made(power, count=12, noise=0.001))
    assert found.state == FORECAST and found.fitted == 12 and found.needed == 0
    assert found.final.middle == pytest.approx(power(TOTAL), abs=0.01)
    assert found.final.low < power(TOTAL) < found.final.high and found.final.high - found.final.low < 0.06
    assert found.noise == pytest.approx(0.001, abs=0.001)
    assert found.fall_to_come.middle == pytest.approx(power(600) - power(TOTAL), abs=0.01)
    updates, middles = [each[0] for each in found.band], [each[1] for each in found.band]
    assert updates[0] == 50 and updates[-1] == TOTAL and middles == sorted(middles, reverse=True)
    assert all(low <= middle <= high for _, middle, low, high in found.band)


def test_an_outlier_moves_little():
    history = made(power, count=12, noise=0.001)
    points = [(update, loss + (0.2 if update == 450 else 0)) for update, loss in history.points]
    found = forecast_history(dataclasses.replace(history, points=tuple(points)))
    assert found.final.middle == pytest.approx(power(TOTAL), abs=0.03)


def test_gains_fall_under_a_threshold_where_the_curve_says():
    # power(u) - power(u + 50) < 0.005 first at u = 550: 0.00500 at 500, 0.00436 at 550.
    true_update = next(update for update in range(50, TOTAL, 50) if power(update) - power(update + 50) < 0.005)
    history = made(power, count=8, noise=0.0005)
    found = forecast_history(history, gain=0.005)
    assert found.gain == 0.005 and found.gain_origin == "--gain"
    assert found.gain_update.low <= true_update <= found.gain_update.high and abs(found.gain_update.middle - true_update) <= 50
    assert forecast_history(history, gain=0.0).gain_update is None
    by_spec = forecast_history(dataclasses.replace(history, rule=StopRule(patience=2, threshold=0.01)))
    assert by_spec.gain == 0.01 and by_spec.gain_origin == "evaluation.early_stopping_threshold"
    by_default = forecast_history(history)
    assert by_default.gain == pytest.approx(0.001 * history.points[-1][1]) and "0.1%" in by_default.gain_origin


def test_the_chance_of_an_early_stop():
    assert forecast_history(made(power)).stop_chance is None
    sure = forecast_history(made(power, count=6, noise=0.0005, patience=2, threshold=0.02))
    assert sure.stop_chance > 0.95 and 300 <= sure.stop_update <= 500
    never = forecast_history(made(lambda update: 2 - update / TOTAL, count=6, noise=0.0005, patience=5))
    assert never.stop_chance < 0.2
    between = forecast_history(made(power, count=6, noise=0.004, patience=2))
    assert 0.2 < between.stop_chance <= 1


def test_the_same_history_gives_the_same_numbers():
    history = made(power, noise=0.01, patience=2)
    assert forecast_history(history) == forecast_history(history)


def test_too_few_points_are_no_forecast():
    few = forecast_history(made(power, count=3))
    assert few.state == TOO_FEW and few.final is None and few.stop_chance is None and few.band == ()
    assert few.needed == LEAST_POINTS - 3 and "2 more, after update 250" in few.reason
    rare = forecast_history(made(power, count=2, eval_steps=400))
    assert "evaluation.eval_steps" in rare.reason
    with pytest.raises(ValueError, match="5 are needed"):
        draw_curves([(1, 1.0)] * 4, 10)


def test_an_overfit_is_told_with_its_best_update():
    found = forecast_history(made(lambda update: power(update) + 0.0008 * max(0, update - 250), count=9, noise=0.002))
    assert found.state == RISING and found.best_update in (250, 300) and "since update" in found.reason and found.final is None
    slowly = [(50, 1.0), (100, 0.9), (150, 0.85), (200, 0.86), (250, 0.88), (300, 0.91)]
    assert rising_since(slowly) == 150
    assert rising_since(slowly[:4]) is None and rising_since(slowly[:2]) is None


def test_noise_is_seldom_taken_for_a_rise():
    generator, found = random.Random(3), 0
    for _ in range(500):
        found += rising_since([(step, 0.5 * step**-0.5 + generator.gauss(0, 0.02)) for step in range(1, generator.choice([6, 9, 13, 21]))]) is not None
    assert found / 500 < 0.04


def test_a_flat_loss_is_forecast_flat():
    found = forecast_history(made(lambda update: 1.5, count=10, noise=0.003, patience=3))
    assert found.state == FORECAST and found.final.low < 1.5 < found.final.high and found.stop_chance > 0.5
    exact = forecast_history(made(lambda update: 1.5, count=10))
    assert exact.final.middle == pytest.approx(1.5, abs=0.01)


def test_quantiles():
    assert quantile([3, 1, 2], 0.5) == 2 and quantile([0, 1], 0.25) == 0.25 and quantile([5], 0.9) == 5


def evaluations(*losses, name="eval"):
    return [{"event": "evaluation", "update": update, "set": name, "loss": loss, "attempt": 1, "time": 1.0} for update, loss in losses]


def run_folder(tmp_path, events, *, done=300, **sections):
    spec = {"evaluation": {"eval_steps": 50}, "schedule": {"lr_scheduler_type": "linear", "warmup_ratio": 0.05}, "checkpoint": {}} | sections
    (tmp_path / "resolved.json").write_text(json.dumps({"spec": spec}))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"update": done, "total_updates": TOTAL, "loss": 1.0, "seconds": 1.0}) + "\n")
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return read_run(tmp_path)


def test_a_runs_evaluations_are_read(tmp_path):
    losses = [(update, power(update)) for update in range(50, 301, 50)]
    record = run_folder(tmp_path, [*evaluations((0, 3.0), *losses), *evaluations((300, 9.0), name="other"), *evaluations((300, power(300)))])
    history = evaluation_history(record)
    assert history.points == ((0, 3.0), *losses) and history.warmup == 50 and history.best == losses[-1]
    assert [history.coming(place) for place in range(history.left)] == list(range(350, TOTAL + 1, 50))
    found = forecast(record)
    assert found.state == FORECAST and found.fitted == 5 and found.metric == "loss" and "learning rate" in found.notes[0]
    assert forecast(record, gain=0.5).gain_update.middle == 300


def test_the_metric_of_the_spec_is_taken(tmp_path):
    both = [*evaluations((50, 1.0), (100, 0.9)), *evaluations((50, 2.0), (100, 1.5), name="b/x"), *evaluations((50, 4.0), (100, 2.5), name="b/y")]
    record = run_folder(tmp_path, both, checkpoint={"metric_for_best_model": "b/loss"})
    assert evaluation_history(record).points == ((50, 3.0), (100, 2.0)) and forecast(record).metric == "b/loss"


def test_runs_without_a_forecast(tmp_path):
    assert forecast(run_folder(tmp_path, [])) is None
    assert forecast(run_folder(tmp_path, evaluations((50, "nan")))) is None
    odd = run_folder(tmp_path, evaluations((50, 1.0), (100, "inf"), (150, 0.9)))
    assert evaluation_history(odd).dropped == 1 and "left out" in forecast(odd).notes[-1]
    over = forecast(run_folder(tmp_path, evaluations((50, 1.0)), done=TOTAL))
    assert over.state == ENDED and "1000 updates are done" in over.reason
    stopped = forecast(run_folder(tmp_path, [*evaluations((50, 1.0)), {"event": "early_stop", "update": 300, "attempt": 1}]))
    assert stopped.state == ENDED and "early stopping" in stopped.reason
    ran_out = forecast(run_folder(tmp_path, [*evaluations((50, 1.0)), {"event": "data_end", "update": 300}]))
    assert ran_out.state == ENDED and "data have ended" in ran_out.reason
    began = {"event": "loop_start", "update": 200, "attempt": 2}
    for ended in ("early_stop", "data_end"):
        # Resumed with more patience, or with more data.
        assert forecast(run_folder(tmp_path, [*evaluations((50, 1.0)), {"event": ended, "update": 200}, began])).state == TOO_FEW
    still = forecast(run_folder(tmp_path, [*evaluations((50, 1.0)), {"event": "data_end", "update": 300}, began]))
    assert still.state == ENDED and "data have ended" in still.reason
    decay = run_folder(tmp_path, evaluations((50, 1.0)), schedule={"lr_scheduler_type": "warmup_stable_decay", "warmup_steps": 0})
    assert "decays at the end" in forecast(decay).notes[0]


def test_stops_are_counted_as_the_trainer_counts():
    rule = StopRule(patience=2, threshold=0.1).after([2.0, 1.95, 1.89])
    assert rule.without_gain == 2 and rule.lowest == 1.89 and rule.is_over
    assert not StopRule().after([1.0, 2.0, 3.0]).is_over


def test_a_run_without_an_end_in_sight_fills_no_memory():
    history = dataclasses.replace(made(power, noise=0.002, patience=3), total_updates=10**12)
    found = forecast_history(history, gain=0.001)
    assert history.left == 2 * 10**10 - 10 and history.coming(history.left - 1) == 10**12 and found.state == FORECAST
    assert forecast_history(dataclasses.replace(history, points=history.points[:3])).reason.endswith("3 more, after update 250")


def test_long_runs_are_looked_at_in_part():
    generator = random.Random(5)
    points = tuple((step, 1.2 + 0.5 * step**-0.3 + generator.gauss(0, 0.003)) for step in range(1, 801))
    history = dataclasses.replace(made(power), points=points, total_updates=50_000, eval_steps=1, rule=StopRule(patience=200))
    found = forecast_history(history)
    assert found.fitted <= 120 and found.final.low < 1.2 + 0.5 * 50_000**-0.3 < found.final.high
    assert "next 600 evaluations" in found.notes[-1]


def test_a_clock_goes_with_the_learning_rate():
    for kind, total in (("cosine", 100), ("linear", 9000), ("warmup_stable_decay", 7), ("constant", 1)):
        schedule = ScheduleSection(lr_scheduler_type=kind, warmup_ratio=0.1)
        clock = LearningClock(schedule, total)
        sums = [sum(learning_rate_factor(schedule, update, total) for update in range(upto)) for upto in (0, total // 3, total)]
        assert [clock.at(upto) for upto in (0, total // 3, total)] == pytest.approx(sums, rel=2e-3, abs=1e-9)


def test_a_loss_that_falls_with_the_learning_rate_is_forecast():
    schedule = ScheduleSection(lr_scheduler_type="cosine", warmup_ratio=0.05)
    clock = LearningClock(schedule, TOTAL)

    def loss_at(update):
        return 1.2 + 0.8 * (1 + clock.at(update) / 60) ** -0.6

    held = 0
    for seed in range(8):
        history = dataclasses.replace(made(loss_at, count=12, noise=0.003, seed=seed), schedule=schedule)
        found = forecast_history(history)
        held += found.final.low <= loss_at(TOTAL) <= found.final.high
    assert held >= 7 and "sum of the learning rate" in found.notes[0]
