"""The report as one HTML page: no scripts, no links to anywhere, readable in light and dark. Whatever rows hold is escaped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.data_report.facts import Report, SetReport
from ftcore.data_report.spread import Bin
from ftcore.report.palette import css_variables
from ftcore.spec.errors import visible

TEMPLATE = "data_report.html.jinja"
WIDTH, BAR, GAP = 640, 14, 4
"""Of the plot, in its own units: whole width, a bin's height, the space between two."""
LEFT, RIGHT = 110, 130
"""Space for a bin's lengths and its counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stripe:
    """One bin of a plot, with where it is drawn."""

    label: str
    y: int
    kept: int
    dropped: int
    kept_width: float
    dropped_width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A histogram lying on its side."""

    stripes: list[Stripe]
    height: int
    limit_y: float | None
    """Where data.max_length stands between the bins; None: beyond all of them."""


def render_page(report: Report) -> str:
    """The page's text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=_shown, trim_blocks=True, lstrip_blocks=True)
    environment.filters["count"] = lambda value: f"{value:,}"
    environment.filters["percent"] = lambda share: f"{100 * share:.1f} %"
    plots = {name: plot_of(each.histogram, report.max_length) for name, each in report.sets.items()}
    refusals = len(report.refusals) + sum(len(each.refusals) for each in report.sets.values())
    light, dark = css_variables()
    page: str = environment.get_template(TEMPLATE).render(
        light=light,
        dark=dark,
        report=report,
        plots=plots,
        refusals=refusals,
        left=LEFT,
        width=WIDTH,
        bar=BAR,
        read_equation=read_equation,
        shown_fate=shown_fate,
    )
    return page


def _shown(value: Any) -> Any:
    """Control characters of a plain text written out; what the template itself marks as safe stays."""
    return visible(value) if type(value) is str else value


def plot_of(bins: list[Bin], max_length: int) -> Plot:
    """Where each bin's bar is drawn."""
    most = max((each.kept + each.dropped for each in bins), default=0) or 1
    scale = (WIDTH - LEFT - RIGHT) / most
    stripes = []
    limit_y = None
    for number, each in enumerate(bins):
        y = number * (BAR + GAP) + GAP
        if each.start > max_length and limit_y is None:
            limit_y = y - GAP / 2
        label = f"{each.start:,}+" if each.end is None else f"{each.start:,}" if each.end - each.start == 1 else f"{each.start:,}–{each.end - 1:,}"
        stripes.append(Stripe(label=label, y=y, kept=each.kept, dropped=each.dropped, kept_width=each.kept * scale, dropped_width=each.dropped * scale))
    return Plot(stripes=stripes, height=len(bins) * (BAR + GAP) + GAP, limit_y=limit_y)


def read_equation(facts: SetReport) -> str:
    """Where the tokens went."""
    repeated = f" − {facts.repeated_tokens:,} repeated by splits" if facts.repeated_tokens else ""
    return f"{facts.tokens_read:,} read = {facts.tokens:,} kept{repeated} + {facts.dropped_tokens:,} dropped"


def shown_fate(facts: SetReport) -> list[tuple[str, int]]:
    """What became of the rows: words and how many."""
    found = [("samples kept", facts.samples)]
    found += [(f"rows dropped: {reason}", count) for reason, count in facts.dropped.items() if count]
    named = (("rows cut", facts.truncated), ("rows cut before the end of their last answer", facts.lost_ends), ("rows split", facts.split))
    return [*found, *((words, count) for words, count in named if count)]
