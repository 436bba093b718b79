"""Time limits: Slurm's forms exactly, and those with units (case H12)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcore.spec.errors import SpecError
from ftcore.spec.yaml_strict import parse_yaml
from launcher.slurm_time import NO_LIMIT, parse_slurm_time, render_slurm_time

CASES = Path(__file__).resolve().parents[1] / "cases"
ROWS = [line.split("\t") for line in (CASES / "slurm/time_limits.tsv").read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(("text", "meaning"), ROWS, ids=[row[0] for row in ROWS])
def test_slurms_forms(text: str, meaning: str) -> None:  # H12
    if meaning.startswith("invalid"):
        with pytest.raises(SpecError, match="HOURS:MINUTES:SECONDS"):
            parse_slurm_time(text)
    else:
        assert parse_slurm_time(text) == (NO_LIMIT if meaning == "no limit" else int(meaning))


def test_a_limit_in_yaml_without_quotes_is_the_text_that_was_written() -> None:  # H12
    data, _, problems = parse_yaml((CASES / "yaml/scalars.yaml").read_text(encoding="utf-8"), "scalars.yaml")
    assert not problems and [parse_slurm_time(data[key]) for key in ("wall_a", "wall_b", "wall_c")] == [86400, 3600, 150]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7200), ("2h30m", 9000), ("90m", 5400), ("1d", 86400), ("1d12h", 129600), ("45s", 45), (" 1h0m5s ", 3605), ("unlimited", 0), ("INFINITE", 0)],
)
def test_forms_with_units(text: str, seconds: int) -> None:
    assert parse_slurm_time(text) == seconds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is no time limit"),
        ("2 h", "is no time limit"),
        ("2H", "is no time limit"),
        ("30m2h", "is no time limit"),
        ("-5", "is no time limit"),
        ("1-", "is no time limit"),
        ("1:2:3:4", "is no time limit"),
        ("1-2-3", "is no time limit"),
        ("\u0662h", "is no time limit"),
        ("9" * 5000, "is no time limit"),
        ("3600.0", "write `3600s` if these are seconds"),
        ("1:60", "60 seconds"),
        ("1:60:00", "60 minutes"),
        ("1-24", "24 hours"),
        ("1d24h", "24 hours"),
        ("2h90m", "90 minutes"),
        ("0h", "leaves no time"),
        ("9999999", "more than 3650 days"),
    ],
)
def test_refusals(text: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_slurm_time(text, "--time")
    assert told in str(caught.value) and caught.value.problems[0].where == "--time" and caught.value.problems[0].fix


@given(st.integers(0, 3650 * 86400))
def test_rendered_limits_read_back(seconds: int) -> None:
    assert parse_slurm_time(render_slurm_time(seconds)) == seconds


def test_rendering() -> None:
    assert [render_slurm_time(seconds) for seconds in (0, 60, 86400, 93784)] == ["UNLIMITED", "00:01:00", "1-00:00:00", "1-02:03:04"]
