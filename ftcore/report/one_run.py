"""The page of one run."""

from __future__ import annotations

from ftcore.report.data import data
from ftcore.report.happenings import happenings
from ftcore.report.headline import headline
from ftcore.report.learning import learning
from ftcore.report.memory import memory
from ftcore.report.page import render_page
from ftcore.report.run_view import RunView, method_name, model_name, setting
from ftcore.report.settings import cost, environment, the_spec
from ftcore.report.speed import speed, where_time_went

PARTS = (headline, learning, speed, where_time_went, memory, data, happenings, cost, the_spec, environment)


def page_of_run(view: RunView) -> str:
    """The page's text."""
    subtitle = f"{model_name(view)} · {method_name(view)} · {setting(view)}"
    return render_page(view.name, [part(view) for part in PARTS], subtitle=subtitle, state=view.state, tone=view.tone)
