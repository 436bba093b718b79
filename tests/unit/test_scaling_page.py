"""scale.html: what it holds of a result, whatever that result is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from ftcore.report.numbers import money, percent
from ftcore.report.scale import main, page_of
from ftcore.spec.errors import CheckpointError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.scale_result import ScaleDir, ScaleResult
from launcher.scaling.arithmetic import agree, set_against
from launcher.scaling.request import WEAK
from tests.unit.scaled import point, result


def done(**more: object) -> ScaleResult:
    crowd = {"oversubscribed": True, "cores": 2, "device_minutes": 3.0, "run_minutes": 1.5, "limiting": "oversubscription: <8> ranks"}
    points = (point(1, cores=1, device_minutes=2.0), point(2, 0.6, cores=2, device_minutes=2.4), point(8, 0.5, **crowd))
    return dataclasses.replace(agree(set_against(result(*points)), 1e-5), **more)


def test_a_page_shows_the_result() -> None:
    text = page_of(done(price_per_hour=30.0, currency="EUR", notes=("each rank had OMP_NUM_THREADS=1",)))
    for held in (
        "Strong scaling of owner/model",
        "losses agree",
        "8 ranks *",
        percent(1 / 0.6 / 2),
        "oversubscription: &lt;8&gt; ranks",
        money(1.5, "EUR"),
        "OMP_NUM_THREADS=1.",
    ):
        assert held in text, held
    assert text.count("<svg") >= 6 and "http://" not in text.replace("http://www.w3.org", "") and "<script" not in text
    for svg in text.split("<svg")[1:]:
        ET.fromstring("<svg" + svg.partition("</svg>")[0] + "</svg>")


def test_a_page_names_stages_baselines_and_points_without_numbers() -> None:
    missing = dataclasses.replace(point(4, stage=3), state="does_not_fit", reason="too large", update_seconds=None, tokens_per_s=None)
    text = page_of(set_against(result(point(2), point(4), point(2, stage=3), missing)))
    assert "4 ranks, stage 3" in text and "does not fit" in text and "too large" in text
    assert "fewest ranks of the same stage that were measured (2), not against one rank" in text


def test_a_page_says_beside_the_speedups_that_others_used_the_machine() -> None:
    text = page_of(result(point(1, busy_cores=0.1), point(2, busy_cores=1.5)))
    assert "Other processes kept cores busy when 2 ranks began" in text
    assert "Other processes" not in page_of(result(point(1, busy_cores=0.2), point(2)))


def test_a_page_of_losses_that_differ() -> None:
    text = page_of(agree(set_against(result(point(1), point(2, losses=(3.0, 1.5)))), 1e-5))
    assert "losses differ" in text and "The points did not train the same" in text
    text = page_of(agree(set_against(result(point(1), point(2, losses=()))), 1e-5))
    assert "a loss is missing or no number" in text


def test_a_page_without_points_and_one_in_weak_mode() -> None:
    assert "measured points" in page_of(result())
    waiting = dataclasses.replace(point(1), state="queued", job="7", reason="Resources")
    assert "its job waits" in page_of(result(waiting))
    assert "grows with the ranks" in page_of(set_against(result(point(1), point(2, tokens=2000.0), mode=WEAK)))


def test_the_page_is_written_beside_its_result(tmp_path: Path) -> None:
    folder = ScaleDir(tmp_path)
    with pytest.raises(CheckpointError, match="can't read"):
        main(RunDir(tmp_path))
    folder.result.write_text(done().to_json())
    main(RunDir(tmp_path))
    before = folder.page.read_text()
    main(RunDir(tmp_path))
    assert folder.page.read_text() == before
    folder.page.unlink()
    folder.page.mkdir()
    with pytest.raises(CheckpointError, match="can't write"):
        main(RunDir(tmp_path))


def test_device_time_of_a_weak_test_is_compared_by_the_token() -> None:
    """Runs of more ranks see more samples there: the shortest run is no cheaper one."""
    points = (point(1, device_minutes=1.0, devices=1, run_minutes=1.0), point(2, tokens=4000.0, device_minutes=2.0, devices=2, run_minutes=1.0))
    of_run, of_tokens = (page_of(set_against(result(*points, mode=mode))).partition("least device time")[2][:200] for mode in ("strong", WEAK))
    assert "1 rank" in of_run and "1 device-minutes for the run" in of_run
    assert "2 ranks" in of_tokens and "8.33 device-minutes a million tokens" in of_tokens
