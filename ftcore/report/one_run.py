"""The page of one run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ftcore.report.blocks import Prose, Section
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

AFTER_LEARNING = {"Speed": speed, "Where the time went": where_time_went, "Memory": memory, "Data": data, "What happened": happenings}


def page_of_run(view: RunView) -> str:
    """The page's text."""
    foreseen = forecast(view.record)
    is_over = view.state == "finished" or (foreseen is not None and foreseen.state == ENDED)
    found = doctor(view)
    sections = [
        _part("Summary", lambda: headline(view, has_doctor=found is not None)),
        *([found] if found is not None else []),
        _part("Learning", lambda: learning(view, foreseen)),
        *(_part(title, partial(make, view)) for title, make in AFTER_LEARNING.items()),
        _part("Cost", lambda: cost(view, is_over=is_over)),
        _part("Spec", lambda: the_spec(view)),
        _part("Environment", lambda: environment(view)),
    ]
    subtitle = f"{model_name(view)} · {method_name(view)} · {setting(view)}"
    return render_page(view.name, sections, subtitle=subtitle, state=view.state, tone=view.tone)


def _part(title: str, make: Callable[[], Section]) -> Section:
    """The part; where the run's files are damaged in a way that nobody thought of, one that says so: the others are still worth reading."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001  as above
        text = f"This part can't be made of what the run recorded, of which something is damaged ({type(error).__name__}: {str(error)[:120]})."
        return Section(title=title, blocks=(Prose(text=text, tone="warn"),))
