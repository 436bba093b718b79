"""The page of several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

from ftcore.report.blocks import Block, Charts, Column, Prose, Section, Table
from ftcore.report.comparison import comparison_table, missing
from ftcore.report.page import render_page
from ftcore.report.run_view import RunView
from ftcore.report.series_of_runs import cost_charts, evaluation_charts, loss_charts, mark_of, phase_chart
from ftcore.spec.report_request import Difference


def page_of_runs(views: Sequence[RunView], differences: Sequence[Difference], notes: Sequence[str]) -> str:
    """The page's text."""
    phases = phase_chart(views)
    evaluated = tuple(evaluation_charts(views))
    sections = [
        Section(title="", blocks=(comparison_table(views),)),
        Section(title="Training loss", blocks=(Charts(charts=tuple(loss_charts(views))),)),
        *([Section(title="Held-out loss", blocks=(Charts(charts=evaluated),))] if evaluated else []),
        Section(title="Speed, memory and cost", blocks=(Charts(charts=(*cost_charts(views), *([phases] if phases else []))),)),
        _different(views, differences, notes),
    ]
    return render_page(f"{len(views)} runs side by side", sections, subtitle=", ".join(view.name for view in views))


def _different(views: Sequence[RunView], differences: Sequence[Difference], notes: Sequence[str]) -> Section:
    """What is not the same in all runs: spec, code, data, environment."""
    columns = (Column(name=""), *(Column(name=view.name, mark=mark_of(number)) for number, view in enumerate(views)))
    blocks: list[Block] = []
    for name in dict.fromkeys(each.section for each in differences):
        rows = tuple((each.key, *map(missing, each.values)) for each in differences if each.section == name)
        blocks.append(Table(name=name.capitalize(), columns=columns, rows=rows, is_pinned=True))
    blocks += [Prose(text=note, tone="soft") for note in notes]
    return Section(title="What differs", blocks=tuple(blocks), lead="" if differences else "Nothing that is recorded.")
