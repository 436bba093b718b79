"""Cases of a run's page in which a number would be wrong: ranks that came and went, currencies, cut drawings, sampled files."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from ftcore.data.cache import Counts, write_samples
from ftcore.report.answers import newest_scores
from ftcore.report.charts import Axis, Series
from ftcore.report.comparison import measures
from ftcore.report.data import data
from ftcore.report.drawing import short_labels, y_range
from ftcore.report.happenings import happenings
from ftcore.report.headline import evaluation_tile
from ftcore.report.phase_times import limiting, rank_times
from ftcore.report.run_view import Evaluated, RunView, peak_bytes
from ftcore.report.scale import page_of
from ftcore.report.scale_charts import memory_chart, speedup_chart
from ftcore.report.series_of_runs import cost_charts
from ftcore.report.speed import phase_table
from ftcore.report.thin_ranks import read_for_report
from ftcore.spec.run_dir import RunDir
from ftcore.spec.run_record import PHASES
from launcher.scaling.arithmetic import set_against
from tests.unit.made_runs import add_lines
from tests.unit.reported_runs import START, long_run, viewed
from tests.unit.scaled import point, result


def rewrite(path: Path, **changed: object) -> None:
    lines = [json.loads(text) | changed for text in path.read_text().splitlines()]
    path.write_text("")
    add_lines(path, *lines)


def view_of(run_dir: RunDir) -> RunView:
    return viewed(run_dir.path)[0]


def test_the_peak_is_of_all_attempts_of_all_ranks(tmp_path: Path) -> None:
    run_dir = long_run(tmp_path / "run", updates=4, ranks=2, attempts=2)
    lines = [json.loads(text) for text in run_dir.rank_metrics(1).read_text().splitlines()]
    lines[1]["peak_memory_bytes"] = 7 << 30
    run_dir.rank_metrics(1).write_text("")
    add_lines(run_dir.rank_metrics(1), *lines)
    assert peak_bytes(view_of(run_dir)) == 7 << 30


def test_a_phase_that_nobody_wants_limits_beside_a_larger_one_that_was_asked_for() -> None:
    seconds = dict.fromkeys(PHASES, 0.0) | {"forward": 35.0, "evaluation": 35.0, "data_wait": 30.0}
    assert limiting(seconds) == ("data", "30 % of the time; computing 35 %")


def test_the_share_that_others_waited_is_of_the_ranks_that_were_there(tmp_path: Path) -> None:
    run_dir = long_run(tmp_path / "run", updates=10, ranks=2, seconds=2.0)
    add_lines(run_dir.rank_metrics(7), json.loads(run_dir.rank_metrics(0).read_text().splitlines()[0]) | {"rank": 7, "update": 11})
    late = rank_times(view_of(run_dir))[1]
    assert late.caused_idle_s / late.others_s == pytest.approx(0.3 / 2.0)


def test_the_time_of_an_update_is_over_the_updates_that_lines_tell_of(tmp_path: Path) -> None:
    run_dir = long_run(tmp_path / "run", updates=100, seconds=2.0)
    run_dir.metrics.write_text("".join(run_dir.metrics.read_text().splitlines(keepends=True)[90:]))
    (forward,) = [row for row in phase_table(view_of(run_dir)).rows if getattr(row[0], "text", "") == "forward"]
    assert forward[2] == "600\u00a0ms"


def test_an_evaluation_that_is_no_number_is_red(tmp_path: Path) -> None:
    view = view_of(long_run(tmp_path / "run", updates=2))
    scores = [Evaluated(update=0, time=START, loss=2.0), Evaluated(update=2, time=START, loss=math.nan)]
    assert evaluation_tile(dataclasses.replace(view, evaluations={"eval": scores})).tone == "wrong"


def test_values_told_to_lie_above_a_drawing_do() -> None:
    values = [float(value % 20) for value in range(100)]
    values[10], values[20] = 46.0, 47.0
    limits, told = y_range([Series(name="", x=range(100), y=values)], Axis(caps=True, from_zero=True))
    assert limits is not None and told.startswith("1 value lies above the drawing") and 46.0 <= limits[1] < 47.0


def test_names_that_begin_alike_are_told_apart_under_bars() -> None:
    assert short_labels(["lora-r16-lr1e-4", "lora-r16-lr2e-4"]) == ["…-r16-lr1e-4", "…-r16-lr2e-4"]
    assert short_labels(["a-long-name-of-one", "b-long-name-of-two"]) == ["a-long-name…", "b-long-name…"]


def test_amounts_of_two_currencies_are_not_compared(tmp_path: Path) -> None:
    folders = [long_run(tmp_path / name, updates=3).path for name in ("eur", "usd", "free")]
    for folder, hardware in zip(folders[1:], ({"price_per_hour": 2.0, "currency": "USD"}, {}), strict=True):
        resolved = json.loads((folder / "resolved.json").read_text())
        resolved["spec"]["hardware"] = hardware
        (folder / "resolved.json").write_text(json.dumps(resolved))
    views = viewed(*folders)
    costs = {each.name: [value is not None for value in each.values] for each in measures(views) if each.name.startswith("cost")}
    assert costs == {"cost, EUR": [True, False, False], "cost, USD": [False, True, False]}
    assert "Cost" not in {chart.title for chart in cost_charts(views)}
    assert "Cost" in {chart.title for chart in cost_charts([views[0], views[2]])}


def test_answers_to_other_rows_are_not_compared(tmp_path: Path) -> None:
    folders = [long_run(tmp_path / name, updates=3).path for name in ("a", "b")]
    for number, folder in enumerate(folders):
        scored = {"path": "e", "fingerprint": f"f{number}", "rows": 9, "tokens": 90, "loss": 1.5, "perplexity": 4.48, "answered_rows": 8}
        found = {
            "model": {"kind": "run", "name": "run", "base": "b", "base_digest": "d", "update": 3},
            "settings": {"world_size": 1, "zero_stage": 0, "precision": "fp32", "max_new_tokens": 9, "max_rows": 8},
            "sets": {"eval": scored | {"metrics": {"exact_match": 0.5 + number / 4}}},
            "seconds": 1.0,
            "created": "2026",
            "version": 1,
        }
        (folder / "evaluations" / "one").mkdir(parents=True)
        (folder / "evaluations" / "one" / "evaluation.json").write_text(json.dumps(found))
    views = viewed(*folders)
    assert newest_scores(views[1])["eval: exact_match"].value == 0.75
    assert [each.best for each in measures(views) if each.name == "eval: exact_match"] == [""]
    assert [each.best for each in measures([views[0], views[0]]) if each.name == "eval: exact_match"] == ["high"]


def test_sampled_files_leave_out_what_whole_ones_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = long_run(tmp_path / "run", updates=6, ranks=2)
    for rank in range(2):
        rewrite(run_dir.rank_metrics(rank), attempt=2)
    run_dir.rank_metrics(3).mkdir()
    whole = read_for_report(run_dir.path)
    monkeypatch.setattr("ftcore.report.thin_ranks.WHOLE_BYTES", 0)
    assert read_for_report(run_dir.path).ranks == {rank: lines for rank, lines in whole.ranks.items() if rank < 2}


def test_an_event_by_a_clock_that_is_behind_stands_within_the_chart(tmp_path: Path) -> None:
    run_dir = long_run(tmp_path / "run", updates=4)
    before = str(happenings(view_of(run_dir)).blocks[0])
    add_lines(run_dir.events, {"event": "finding", "kind": "spike", "update": 1, "time": START - 1e6, "attempt": 1, "what": "x"})
    after = str(happenings(view_of(run_dir)).blocks[0])
    places = [float(found) for found in re.findall(r'x="(-?[0-9.]+)"', after)]
    assert before != after and min(places) >= 0


def test_lengths_are_of_all_samples_of_the_sets_that_are_shown(tmp_path: Path) -> None:
    run_dir = long_run(tmp_path / "run", updates=2)
    path = tmp_path / "samples.arrow"
    ids = [np.arange(length, dtype=np.int32) for length in (3, 5, 40)]
    write_samples(path, ids, [[(1, 2)]] * 3, [1, 2, 3], Counts(rows=3, tokens=48, supervised_tokens=3))
    run_dir.prepared.write_text(json.dumps({"train": {f"set{number}": {"arrow": str(path)} for number in range(8)}}))
    (lengths,) = [chart for block in data(view_of(run_dir)).blocks for chart in getattr(block, "charts", ()) if chart.title == "Lengths of samples"]
    assert lengths.note == "data.max_length is 512. The first 6 of 8 sets." and "the highest 6" in lengths.svg


def test_points_of_a_scaling_test_without_a_number_have_none() -> None:
    points = set_against(result(point(1, device_minutes=None), point(2, device_minutes=3.0, peak_memory_bytes=None), point(2, stage=3), point(4, stage=3)))
    text = page_of(dataclasses.replace(points, price_per_hour=30.0, currency="EUR"))
    assert '2 ranks, stage 2</div><div class="note">3 device-minutes' in text and "0.00" not in text
    assert "none" in memory_chart(result(point(2, peak_memory_bytes=None))).svg
    described = speedup_chart(points).svg.split("<desc")[1].split("</desc>")[0]
    assert described.count("ideal: from 1 to 4") == 1 and described.count("ideal: from 1 to 2") == 1
