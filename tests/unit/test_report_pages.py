"""Pages of runs as text: broken, long, wide, old and new ones; and what is set side by side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ftcore.report.comparison import comparison_table, measures
from ftcore.report.headline import stands_out
from ftcore.report.make import make_page, read_views
from ftcore.report.one_run import page_of_run
from ftcore.report.phase_times import limiting, over_time, rank_times
from ftcore.report.run_view import RunView
from ftcore.report.several_runs import page_of_runs
from ftcore.report.thin_ranks import WHOLE_BYTES, rank_files, read_for_report
from ftcore.spec.errors import CheckpointError
from ftcore.spec.report_request import Difference, ReportedRun, ReportRequest, ReportRequestDir, load_report_request
from ftcore.spec.run_record import PHASES, phases_of, summed_phases
from tests.unit.made_runs import add_lines, made_run, old_line
from tests.unit.reported_runs import START, long_run, viewed


def text_of(view: RunView) -> str:
    """A page's text, without its drawings and marks."""
    page = page_of_run(view)
    assert page.rstrip().endswith("</html>")
    plain = re.sub(r"<(svg|style).*?</\1>", "", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", plain)).replace("&#39;", "'")


def test_a_whole_run(tmp_path: Path) -> None:
    (view,) = viewed(long_run(tmp_path / "run").path, state="finished")
    text = text_of(view)
    for words in (
        "HuggingFaceTB/SmolLM2-135M · LoRA r 16 · 2 ranks · ZeRO stage 2 · bf16",
        "final loss 1.3763 after update 60 of 60",
        "4.300 → 1.449",
        "perplexity 73.7 → 4.26",
        "0.14 EUR",
        "1 attempt; updates alone 1 min 21 s",
        "limited by computing 78 % of the time",
        "padding 11.1 %",
        "clipped above 1",
        "Rank 1 on node1 made each other rank wait for 20.0 % of the time, mostly while in forward.",
        "what a rank can have, 8.00 GiB",
        "zero.stage 2 --zero",
        "900 read, 890 samples kept; dropped: 10 overlong",
    ):
        assert words in text, words
    assert "kWh" not in text and "NaN" not in text and "None" not in text


def test_rates_know_nothing_of_the_hours_between_attempts(tmp_path: Path) -> None:
    one, four = viewed(long_run(tmp_path / "one", updates=80).path, long_run(tmp_path / "four", updates=80, attempts=4).path)
    assert (one.totals.tokens_per_s, len(four.attempts)) == (pytest.approx(four.totals.tokens_per_s), 4)
    assert four.totals.wall_s < 1000 < four.record.updates[-1]["time"] - START
    text = text_of(four)
    assert "4 attempts" in text and text.count("killed") >= 3 and "resumed" in text


@pytest.mark.parametrize("updates", [0, 1, 2])
def test_a_run_that_has_just_begun(tmp_path: Path, updates: int) -> None:
    run_dir = made_run(tmp_path / "run")
    if updates:
        run_dir = long_run(tmp_path / "more", updates=updates)
    (view,) = viewed(run_dir.path, state="running")
    text = text_of(view)
    assert ("No update is written down yet." in text) == (updates == 0) and "newest loss" in text


def test_a_run_killed_within_a_line_with_losses_that_are_no_numbers(tmp_path: Path) -> None:
    run_dir = long_run(tmp_path / "run")
    lines = [json.loads(text) for text in run_dir.metrics.read_text().splitlines()]
    lines[5] |= {"loss": "nan", "grad_norm": "inf", "stepped": False}
    lines[40]["loss"] = 812.3
    run_dir.metrics.write_text("\n".join(map(json.dumps, lines)) + '\n{"update": 61, "loss": 0.')
    add_lines(run_dir.events, {"event": "error", "time": START, "attempt": 1, "rank": 1, "problems": [{"what": "CUDA out of memory"}]})
    (view,) = viewed(run_dir.path, state="failed")
    text = text_of(view)
    assert "1 of 60 logged updates changed nothing" in text and "1 update has no finite loss: gaps." in text
    assert "1 value lies above the drawing, up to 812" in text and "It failed: CUDA out of memory." in text


def test_a_run_of_an_earlier_version(tmp_path: Path) -> None:
    run_dir = made_run(tmp_path / "run")
    seconds = {"seconds_forward": 0.5, "seconds_backward": 1.0, "seconds_step": 0.1, "data_wait_seconds": 0.1}
    add_lines(run_dir.metrics, *(old_line(update) | {"loss": 3 / update} | seconds for update in range(1, 10)))
    (view,) = viewed(run_dir.path)
    assert "This run was recorded before phases were" in text_of(view)
    found = phases_of(view.lines[0])
    assert (found["forward"], found["optimizer"], found["other"], sum(found.values())) == (0.5, 0.1, pytest.approx(0.3), pytest.approx(2.0))


def test_a_run_on_a_stream(tmp_path: Path) -> None:
    run_dir = long_run(tmp_path / "run", hidden={"dropped_rows": {"overlong": 2}, "padding_share": 0.1})
    run_dir.plan_updates.unlink()
    stream = {"files": 3, "bytes": 5 << 30, "rows": None, "lanes": 4, "shards": 12, "total_updates": 60, "repeat": False, "notes": ["2 files are compressed"]}
    run_dir.plan_json.write_text(json.dumps(stream))
    (view,) = viewed(run_dir.path)
    text = text_of(view).replace("\u00a0", " ")
    for words in (
        "3 files with 5.00 GiB",
        "not known beforehand",
        "60 updates at most",
        "2 files are compressed",
        "120 overlong",
        "Padding in what is computed",
    ):
        assert words in text, words


def test_phases_add_up_however_they_are_summed(tmp_path: Path) -> None:
    (view,) = viewed(long_run(tmp_path / "run", updates=130, ranks=3).path)
    whole = sum(line["phase_seconds"] for line in view.lines)
    assert sum(summed_phases(view.lines).values()) == pytest.approx(whole)
    edges, values = over_time(view.lines)
    in_bins = sum(sum(each[place] for each in values.values()) * (edges[place + 1] - edges[place]) for place in range(len(edges) - 1))
    assert (len(edges), edges[0], edges[-1], in_bins) == (61, 0.0, 130.0, pytest.approx(whole))
    late = rank_times(view)[1]
    assert (late.rank, late.host, late.updates, late.late_phase, late.caused_idle_s) == (1, "node1", 130, "forward", pytest.approx(39.0))


def test_what_limits_a_run_is_named() -> None:
    busy = dict.fromkeys(PHASES, 0.0) | {"forward": 3.0, "backward": 6.0}
    assert limiting(busy)[0] == "computing" and limiting(dict.fromkeys(PHASES, 0.0)) == ("–", "")
    for phase, words in (("idle", "uneven ranks"), ("data_wait", "data"), ("communication", "communication")):
        assert limiting(busy | {phase: 4.0}) == (words, "31 % of the time; computing 69 %")
    assert limiting(busy | {"evaluation": 4.0})[0] == "computing" and limiting(busy | {"evaluation": 8.0})[0] == "evaluations"


def test_what_stands_out(tmp_path: Path) -> None:
    run_dir = long_run(tmp_path / "run", hidden={"grad_norm": 3.0, "window_computed_tokens": 1200})
    cause = {"name": "samples", "suspected": False, "what": "rows 3, 4"}, {"name": "clipping", "suspected": True, "what": "norm 8"}
    add_lines(
        run_dir.events,
        {"event": "finding", "kind": "spike", "update": 9, "what": "loss spike at update 9", "causes": cause},
        {"event": "finding", "kind": "slow_rank", "update": 30, "rank": 1, "what": "rank 1 is slow"},
        {"event": "evaluation", "set": "eval", "loss": 2.5, "update": 61, "time": START, "attempt": 1},
    )
    (view,) = viewed(run_dir.path)
    told = [text.replace("\u00a0", " ") for text, _ in stands_out(view)]
    assert "Spike: loss spike at update 9. Check first: norm 8." in told and "Slow rank: rank 1 is slow." in told
    assert any("eval was best at update 60" in text for text in told)
    assert "The gradient norm was above its limit of 1 in 100.0 % of the logged updates." in told
    assert "33.3 % of the computed positions are padding." in told


def test_very_many_updates_are_a_small_page(tmp_path: Path) -> None:
    run_dir = long_run(tmp_path / "run", updates=10)
    template = {name: value for name, value in json.loads(run_dir.metrics.read_text().splitlines()[0]).items() if name not in ("mfu", "learning_rate")}
    text = json.dumps(template | {"update": -1, "loss": -2}).replace('"update": -1', '"update": %d').replace('"loss": -2', '"loss": %.4f')
    with run_dir.metrics.open("w", encoding="utf-8") as file:
        file.writelines((text % (update, 2 + update % 1000 / 1000) + "\n") for update in range(1, 30_001))
    (view,) = viewed(run_dir.path)
    page = page_of_run(view)
    assert len(page.encode()) < 1_000_000 and "mean of 84 logged updates" in page and "30,000" in page


def test_large_files_of_ranks_are_sampled(tmp_path: Path) -> None:
    run_dir = long_run(tmp_path / "run", updates=40, ranks=2)
    line = json.loads(run_dir.rank_metrics(0).read_text().splitlines()[0])
    padding = "x" * 20_000
    with run_dir.rank_metrics(0).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line | {"update": update, "padding": padding}) + "\n" for update in range(41, 41 + WHOLE_BYTES // 20_000))
    assert sum(path.stat().st_size for path in rank_files(run_dir.path).values()) > WHOLE_BYTES
    record = read_for_report(run_dir.path)
    assert 20 < len(record.ranks[0]) < 200 and len(record.updates) == 40 and record.ranks[1][0]["update"] == 1


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [long_run(tmp_path / folder / "run", updates=3).path for folder in ("a", "b")]
    assert [view.name for view in viewed(*paths)] == [str(path) for path in paths]
    same = ReportedRun(path=str(paths[0]), shown="run")
    assert [view.name for view in read_views([same, same])] == ["run", "run (2)"]


def test_side_by_side(tmp_path: Path) -> None:
    folders = [long_run(tmp_path / name, updates=updates, ranks=ranks).path for name, updates, ranks in (("full", 60, 4), ("lora", 40, 2))]
    held_out = {"eval": {"eval": {"fingerprint": "same"}}}
    for folder in folders:
        (folder / "prepared.json").write_text(json.dumps(held_out))
    views = viewed(*folders, made_run(tmp_path / "new").path)
    rows = {row[0]: [each if isinstance(each, str) else each.text + "*" * (each.tone == "good") for each in row[1:]] for row in comparison_table(views).rows}
    assert rows["eval: last loss"] == ["1.4494", "1.4494", "–"] and rows["eval: loss before"][0] == "4.3000"
    assert rows["updates"] == ["60", "40", "–"] and rows["trained parameters"] == ["5,000,000", "5,000,000", "–"]
    assert rows["device-hours"][1].endswith("*") and rows["tokens/s"][2] == "–"
    page = page_of_runs(views, [Difference(section="spec", key="method.type", values=("full", "lora", ""))], ("new: never started.",))
    for words in ("3 runs side by side", "Training loss by supervised tokens", "eval: loss by time", "method.type", "new: never started."):
        assert words in page, words
    (folders[1] / "prepared.json").write_text(json.dumps({"eval": {"eval": {"fingerprint": "other"}}}))
    assert [each.best for each in measures(viewed(*folders)) if each.name == "eval: last loss"] == [""]


def test_answers_are_shown(tmp_path: Path) -> None:
    run_dir = long_run(tmp_path / "run", updates=5)
    folder = run_dir.path / "evaluations" / "20260101-000000-update_5"
    folder.mkdir(parents=True)
    scored = {"path": "eval.jsonl", "fingerprint": "f", "rows": 9, "tokens": 90, "loss": 1.5, "perplexity": 4.48, "answered_rows": 8}
    model = {"kind": "run", "name": "run", "base": "b", "base_digest": "d", "update": 5}
    settings = {"world_size": 1, "zero_stage": 0, "precision": "fp32", "max_new_tokens": 9, "max_rows": 8}
    result = {
        "model": model,
        "settings": settings,
        "sets": {"eval": scored | {"metrics": {"exact_match": 0.625}}},
        "seconds": 1.0,
        "created": "2026",
        "version": 1,
    }
    (folder / "evaluation.json").write_text(json.dumps(result))
    (folder.parent / "broken").mkdir()
    (folder.parent / "broken" / "evaluation.json").write_text("{")
    (view,) = viewed(run_dir.path)
    assert "exact_match" in text_of(view) and "62.5 %" in text_of(view)


def test_a_folder_without_a_run_and_a_file_that_can_not_be_written(tmp_path: Path) -> None:
    asked = ReportRequest(runs=(ReportedRun(path=str(tmp_path), shown="x"),), output=str(tmp_path / "report.html"))
    with pytest.raises(CheckpointError, match="holds no run"):
        make_page(asked)
    run = long_run(tmp_path / "run", updates=1).path
    with pytest.raises(CheckpointError, match="can't write /proc/"):
        make_page(ReportRequest(runs=(ReportedRun(path=str(run), shown="run"),), output="/proc/report.html"))
    request = ReportRequestDir(tmp_path).request
    request.write_text(asked.to_json())
    assert load_report_request(request) == asked
    request.write_text("{}")
    with pytest.raises(CheckpointError, match="not a request for a report"):
        load_report_request(request)
