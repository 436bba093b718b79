"""The page of one run."""

from __future__ import annotations

from ftcore.report.cost import cost
from ftcore.report.data import data
from ftcore.report.doctor import doctor
from ftcore.report.happenings import happenings
from ftcore.report.headline import headline
from ftcore.report.learning import learning
from ftcore.report.memory import memory
from ftcore.report.page import render_page
from ftcore.report.run_view import RunView, method_name, model_name, setting
from ftcore.report.settings import environment, the_spec
from ftcore.report.speed import speed, where_time_went
from ftcore.spec.evaluation_forecast import ENDED, forecast

AFTER_LEARNING = (speed, where_time_went, memory, data, happenings)


def page_of_run(view: RunView) -> str:
    """The page's text."""
    foreseen = forecast(view.record)
    is_over = view.state == "finished" or (foreseen is not None and foreseen.state == ENDED)
    found = doctor(view)
    sections = [
        headline(view, has_doctor=found is not None),
        *([found] if found is not None else []),
        learning(view, foreseen),
        *(part(view) for part in AFTER_LEARNING),
        cost(view, is_over=is_over),
        the_spec(view),
        environment(view),
    ]
    subtitle = f"{model_name(view)} · {method_name(view)} · {setting(view)}"
    return render_page(view.name, sections, subtitle=subtitle, state=view.state, tone=view.tone)
