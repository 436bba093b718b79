"""A page of HTML in one file: no script, nothing loaded from anywhere, light and dark, on paper too. Whatever the blocks hold is escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcore.report.blocks import Section
from ftcore.report.palette import css_variables
from ftcore.spec.errors import visible

if TYPE_CHECKING:
    from jinja2 import Environment

FRAME = "frame.html.jinja"
_SURROGATE = re.compile("[\ud800-\udfff]")


def render_page(title: str, sections: Sequence[Section], *, subtitle: str = "", state: str = "", tone: str = "") -> str:
    """The page's text; equal values give equal text.

    `state` is one word beside the title ("running"), in the colour that `tone` says (good, warn, wrong or none).
    """
    light, dark = css_variables()
    named = [(anchor(section.title, number), section) for number, section in enumerate(sections, start=1)]
    page: str = environment().get_template(FRAME).render(title=title, subtitle=subtitle, state=state, tone=tone, sections=named, light=light, dark=dark)
    return page


@cache
def environment() -> Environment:
    """Where templates of this package are found and rendered; for pages that bring a body of their own."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=_shown, trim_blocks=True, lstrip_blocks=True)


def anchor(title: str, number: int) -> str:
    """A section's id: no two of a page are the same, and it holds nothing that a page would obey."""
    return f"{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')[:40] or 'part'}-{number}"


def plain(text: str) -> str:
    """`text` with what can't be shown or written as UTF-8 spelt out."""
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", visible(text))


def _shown(value: Any) -> Any:
    """A plain text made fit to be shown; what the frame itself marks as safe stays."""
    return plain(value) if type(value) is str else value
