"""Sizes and durations: each form, and for what is none the nearest right one (cases B01, H12)."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcore.spec.quantities import QuantityError, parse_duration, parse_size, render_units
from ftcore.spec.yaml_strict import parse_yaml
from launcher.slurm_time import parse_slurm_time

CASES = Path(__file__).resolve().parents[1] / "cases"
ROWS = [line.split("\t") for line in (CASES / "slurm/time_limits.tsv").read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24 GiB", 24 * 2**30),
        ("24GiB", 24 * 2**30),
        ("512MB", 512 * 10**6),
        ("512 MiB", 512 * 2**20),
        ("1.5 TB", 1_500_000_000_000),
        ("1.5 TiB", 3 * 2**39),
        (" 80 GB ", 80 * 10**9),
        ("4096", 4096),
        ("4096 B", 4096),
        ("0", 0),
        ("1 kB", 1000),
        ("1 KB", 1000),
        ("2 KiB", 2048),
        ("0.1 GiB", 107374182),
        ("3 PB", 3 * 10**15),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the forms are `24 GiB`"),
        ("-1 GB", "the forms are"),
        ("GiB", "the forms are"),
        ("24 gib", "write `24 GiB`"),
        ("24  GiB", "write `24 GiB`"),
        ("24 gb", "write `24 GB`"),
        ("24G", "write `24 GB` (powers of 1000) or `24 GiB` (powers of 1024)"),
        ("1.5t", "write `1.5 TB` (powers of 1000) or `1.5 TiB` (powers of 1024)"),
        ("24Gi", "write `24 GiB`"),
        ("24 Gbit", "the forms are"),
        ("1,000 MB", "write `1000 MB`"),
        ("1_000", "write `1000`"),
        ("1.5", "bytes are whole: write `2`"),
        ("1e9", "the forms are"),
        ("\u0662 GB", "the forms are"),
        ("2000 PB", "more than a million terabytes"),
        ("9" * 5000, "the forms are"),
    ],
)
def test_what_is_no_size(text: str, told: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_size(text)
    assert told in str(caught.value) and caught.value.reason and caught.value.fix and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("2h30m", 9000), ("90s", 90), ("1d", 86400), ("1d12h", 129600), ("0s", 0), (" 5m ", 300)),
        *(("2:30:00", 9000), ("1-12:00:00", 129600), ("4:00", 240), ("2-12", 216000), ("24:00:00", 86400)),
        *(("90", 90), ("0.5", 0.5), ("3600.0", 3600), ("0", 0)),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the forms are `2h30m`"),
        ("-5", "the forms are"),
        ("never", "the forms are"),
        ("2 h", "write `2h`"),
        ("2H", "write `2h`"),
        ("30m2h", "write `2h30m`"),
        ("1.5h", "write `1h30m`"),
        ("2 hours and 5 min", "write `2h5m`"),
        ("90 seconds", "write `1m30s`"),
        ("0.5s", "the forms are"),
        ("2h90m", "write `3h30m`"),
        ("1:60:00", "write `2h`"),
        ("99999d", "more than 3650 days"),
        ("999999999", "more than 3650 days"),
        ("9999999h", "more than 3650 days"),
        ("1e3", "the forms are"),
        ("\u0662h", "the forms are"),
    ],
)
def test_what_is_no_duration(text: str, told: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_duration(text)
    assert told in str(caught.value) and caught.value.reason and caught.value.fix


@pytest.mark.parametrize(("text", "meaning"), [row for row in ROWS if not row[1].startswith(("invalid", "no"))])
def test_slurms_forms_mean_one_thing_but_for_a_number_alone(text: str, meaning: str) -> None:  # H12
    assert parse_duration(text) == (int(meaning) if not text.isdigit() else int(text))


def test_what_yaml_would_read_in_base_60_is_a_duration() -> None:  # B01, H12
    data, _, problems = parse_yaml((CASES / "yaml/scalars.yaml").read_text(encoding="utf-8"), "scalars.yaml")
    assert not problems and [parse_duration(data[key]) for key in ("wall_a", "wall_b", "wall_c")] == [86400, 3600, 150]


@given(st.integers(1, 3650 * 86400))
def test_rendered_durations_read_back_alike_everywhere(seconds: int) -> None:
    assert parse_duration(render_units(seconds)) == parse_slurm_time(render_units(seconds)) == seconds


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_size, parse_duration):
        with contextlib.suppress(QuantityError):
            assert parse(text) >= 0
