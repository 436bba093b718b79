"""What pages are made of: colours, numbers, thinned and smoothed curves, drawings."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from ftcore.report.charts import Axis, Layer, Mark, Series, bars, histogram, line_chart, stacked_bars, tick_places
from ftcore.report.curves import as_number, cap_of, column, sampled, smoothed, smoothing_span, thinned, without_peaks
from ftcore.report.numbers import TIME_UNITS, count, duration, fixed, in_bytes, money, percent, short_number, time_tick
from ftcore.report.palette import COLOURS, PHASES, SERIES
from ftcore.report.timeline import Lane, Span, timeline

SIGHTS = {
    "all": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""How linear red, green and blue are seen: Machado, Oliveira and Fernandes 2009, table 1, severity 1.0."""
GAP = "\u00a0"


def lab(colour: str, sight: str) -> tuple[float, float, float]:
    """CIE L*a*b* of a colour as it is seen."""
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))]
    red, green, blue = (min(1.0, max(0.0, sum(part * value for part, value in zip(row, linear, strict=True)))) for row in SIGHTS[sight])
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("side", [0, 1], ids=["light", "dark"])
def test_colours_are_told_apart_by_any_sight(sight: str, side: int) -> None:
    for names, least in ((SERIES, 15.0), (PHASES, 8.0)):
        seen = {name: lab(COLOURS[name][side], sight) for name in names}
        gaps = {(one, other): math.dist(seen[one], seen[other]) for one, other in itertools.combinations(names, 2)}
        assert {pair: round(gap, 1) for pair, gap in gaps.items() if gap < least} == {}


@pytest.mark.parametrize("side", [0, 1], ids=["light", "dark"])
def test_lines_stand_out_from_the_paper(side: int) -> None:
    paper = lab(COLOURS["paper"][side], "all")[0]
    assert [name for name in SERIES if abs(lab(COLOURS[name][side], "all")[0] - paper) < 45] == []


def test_numbers_are_short() -> None:
    assert [short_number(value) for value in (None, 0, 0.00012, 0.25, 3.14159, 999.7, 12_345, 2.5e6, math.nan, math.inf, -math.inf)] == [
        "–", "0", "1.2e-4", "0.25", "3.14", "1k", "12.3k", "2.5M", "NaN", "∞", "−∞",
    ]  # fmt: skip
    assert (count(1234567.0), fixed(1.23456), percent(0.1234), percent(math.nan)) == ("1,234,567", "1.2346", f"12.3{GAP}%", "–")
    assert [in_bytes(value) for value in (10, 3 << 20, 200 << 30)] == [f"10{GAP}B", f"3.00{GAP}MiB", f"200{GAP}GiB"]
    assert [duration(value).replace(GAP, " ") for value in (0.0123, 59.4, 65, 7200, 260_000)] == ["12.3 ms", "59.4 s", "1 min 05 s", "2 h 00 min", "3 d 0 h"]
    assert [time_tick(value).replace(GAP, " ") for value in (0, 0.25, 80, 150, 5400, 9000)] == ["0", "250 ms", "80 s", "2.5 min", "90 min", "2.5 h"]
    assert [money(value, "EUR").replace(GAP, " ") for value in (None, 0, 1234.5, 0.0123)] == ["–", "0.00 EUR", "1,234.50 EUR", "0.012 EUR"]
    assert tick_places(0, 400, Axis(units=TIME_UNITS), 5)[:3] == [0.0, 120.0, 240.0]


def test_values_of_lines_may_be_text() -> None:
    assert column([{"loss": 1}, {"loss": "nan"}, {"loss": "inf"}, {}, {"loss": None}, {"loss": True}, {"loss": "much"}], "loss")[:1] == [1.0]
    assert [math.isnan(as_number(value)) for value in ("nan", None, True, "much", [], 10**400)] == [True] * 6 and as_number("inf") == math.inf


def test_thinning_loses_no_extreme_and_no_mean() -> None:
    x = [float(place) for place in range(100_000)]
    y = [math.sin(place / 50) for place in x]
    y[77_777], y[5] = 900.0, math.nan
    curve = thinned(x, y, most=300)
    assert len(curve.x) == len(curve.y) == len(curve.low) == len(curve.high) == 300
    assert max(curve.high) == 900.0 and min(curve.low) == pytest.approx(-1, abs=1e-3)
    assert all(low <= mean <= high for low, mean, high in zip(curve.low, curve.y, curve.high, strict=True))
    few = thinned(x[:10], y[:10])
    assert (few.x, few.low) == (tuple(x[:10]), ())
    assert thinned(x[:1000], [math.nan] * 1000).is_empty
    assert (sampled(x, x).x[0], sampled(x, x).x[-1], len(sampled(x, x).x)) == (0.0, 99_999.0, 360)


def test_smoothing_neither_lags_nor_forgets_weights() -> None:
    line = [float(place) for place in range(40)]
    assert smoothed(line, [1.0] * 40) == pytest.approx(line)
    assert smoothing_span(11) == 0 and smoothing_span(40) == 5 and smoothing_span(1000) == 51
    heavy = smoothed([1.0, 1.0, 4.0, 1.0, 1.0] * 4, [1.0, 1.0, 6.0, 1.0, 1.0] * 4)
    assert heavy[7] == pytest.approx((1 * 4 + 4 * 6) / 10)
    holes = smoothed([math.nan, 2.0] * 10, [1.0] * 20)
    assert holes[10] == pytest.approx(2.0) and math.isnan(holes[0])


def test_peaks_are_told_and_not_drawn() -> None:
    values = [2.0 + place % 7 / 10 for place in range(60)]
    assert cap_of(values) == math.inf and cap_of([*values[:10], 1e9]) == math.inf
    values[30] = 812.3
    assert 2.6 < cap_of(values) < 10 and math.isnan(without_peaks(values)[30])
    chart = line_chart("Loss", [Series(name="loss", x=list(range(60)), y=values)], x=Axis(name="update"), y=Axis(caps=True))
    assert chart.note == "1 value lies above the drawing, up to 812: see ▲."


def drawings() -> list[str]:
    """Every kind of chart, with a name that means something to matplotlib, to SVG and to HTML."""
    odd = '<b>$\\frac{a}{b}$</b> & "#fe0001" \ud800 \x1b'
    x, y = [0.0, 1.0, 2.0], [1.0, math.nan, 3.0]
    layers = [Layer(name=odd, values=[1.0, 2.0], colour="phase-forward"), Layer(name="b", values=[0.0, 0.0], colour="phase-idle")]
    series = [Series(name=odd, x=x, y=y, low=y, high=y), Series(name="dots", x=[1.0], y=[2.0], style="dots"), Series(name="dashed", x=x, y=x, style="dashed")]
    limits = Axis(name=odd, from_zero=True, limits=(Mark(x=2.5, name=odd, colour="wrong"),))
    charts = [
        line_chart(odd, series, x=Axis(name=odd), y=limits, marks=[Mark(x=1.0, name=odd)], wide=True),
        line_chart("log", [Series(name="", x=x, y=[1.0, 10.0, 1000.0])], x=Axis(), y=Axis(is_log=True)),
        line_chart("nothing", [], x=Axis(), y=Axis()),
        stacked_bars(odd, [odd, "b"], layers, y=limits, wide=True),
        stacked_bars("none", [], [], y=Axis()),
        histogram(odd, [0.0, 1.0, 2.0], layers, x=Axis(name=odd), y=Axis(name=odd)),
        bars(odd, [odd, "b"], layers, colours=["series-1", "series-2"]),
        timeline(odd, [Lane(name=odd, spans=(Span(start=0.0, end=90.0, colour="series-1", name=odd),)), Lane(name="b", points=(5.0,))]),
    ]
    return [svg for chart in charts for svg in (chart.svg, chart.narrow) if svg]


def test_drawings_are_the_same_each_time_and_need_nothing_else() -> None:
    first = drawings()
    assert first == drawings()
    for svg in first:
        assert svg.startswith("<svg") and "<title" in svg and "<desc" in svg and 'role="img"' in svg
        assert not re.search(r"http|<script|<style|DejaVu|#fe00|#000000|\d{4}-\d\d-\d\dT|<metadata|xlink", re.sub(r">[^<]*<", "><", svg))
        assert "var(--" in svg
    ids = [name for svg in first for name in re.findall(r' id="([^"]+)"', svg)]
    assert len(ids) == len(set(ids))


def test_text_of_drawings_is_text() -> None:
    svg = drawings()[0]
    assert "&lt;b&gt;$\\frac{a}{b}$&lt;/b&gt; &amp; " in svg and "#fe0001" in svg and "\\ud800" in svg and "\\x1b" in svg
    assert "<b>" not in svg and "<text" in svg
    svg.encode()
