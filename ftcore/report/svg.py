"""Drawings as SVG inside a page: matplotlib draws with stand-in colours, which become the page's variables, so that one is right in light and dark."""

from __future__ import annotations

import io
import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

from ftcore.report.page import plain
from ftcore.report.palette import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Draw = Callable[["Axes"], None]

FONT_SIZE = 10.5
"""In the drawing's own units, which are a screen's pixels where it is shown at its natural width."""
_STAND_INS = {name: f"#fe{number:04x}" for number, name in enumerate(COLOURS, start=1)}
_VARIABLES = {colour: f"var(--{name})" for name, colour in _STAND_INS.items()}
_STYLE = re.compile(r'style="[^"]*"')
_FONT = re.compile(r"font-family: [^;\"]*;? ?")
_UNSEEN = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>|<\?xml.*?\?>|<!DOCTYPE.*?>", re.DOTALL)
_REFERENCE = re.compile(r'href="#([^"]+)"|url\(#([^)]+)\)')
_ID = re.compile(r' id="([^"]+)"')
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ftlaunch",
    "text.parse_math": False,
    "font.size": FONT_SIZE,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.linewidth": 1.0,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "lines.solid_joinstyle": "round",
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
    "xtick.major.pad": 5.0,
    "ytick.major.pad": 5.0,
}


def colour(name: str) -> str:
    """What to draw with for the page to show the colour `name` of the palette."""
    return _STAND_INS[name]


def draw_svg(title: str, describes: str, size: tuple[int, int], draw: Draw, *, shown: str = "") -> str:
    """An `<svg>` element of `size` units with a title and a description for readers that can't see it.

    `shown`: its class, "broad" or "narrow" where there are two of it. Equal calls give equal text.
    """
    with _own_settings():
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        figure = Figure(figsize=(size[0] / 72, size[1] / 72), dpi=72, layout=ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.03))
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        _plain_axes(axes)
        draw(axes)
        for artist in (*axes.lines, *axes.collections, *axes.patches):
            artist.set_in_layout(False)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return _embedded(text.getvalue(), title, describes, size, shown)


@contextmanager
def _own_settings() -> Iterator[None]:
    """Matplotlib as it comes, whatever the user's matplotlibrc says; a letter that its font lacks is the browser's to draw."""
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # They were checked when they were made: checking all of them again for each drawing takes a fifth of its time.
        settings: Any = mpl.rcParams
        dict.update(settings, _checked_settings())
        yield


@cache
def _checked_settings() -> dict[str, Any]:
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        return {name: value for name, value in dict.items(mpl.rcParams) if name != "backend"}


def _plain_axes(axes: Axes) -> None:
    axes.grid(axis="y", color=colour("line"), linewidth=0.8)
    axes.tick_params(colors=colour("soft"))
    axes.spines["bottom"].set_color(colour("line"))


def _embedded(svg: str, title: str, describes: str, size: tuple[int, int], shown: str) -> str:
    """The element alone, without what a page does not need, with ids that only this drawing has."""
    body = _UNSEEN.sub("", svg)
    body = body[body.index(">", body.index("<svg")) + 1 : body.rindex("</svg>")]
    body = _STYLE.sub(_with_variables, body).replace("xlink:href=", "href=")
    used = {one or other for one, other in _REFERENCE.findall(body)}
    prefix = f"{digest(title + shown + body):08x}"
    body = _ID.sub(lambda found: f' id="{prefix}{found[1]}"' if found[1] in used else "", body)
    body = body.replace('href="#', f'href="#{prefix}').replace("url(#", f"url(#{prefix}")
    body = re.sub(r"\n\s*", "\n", re.sub(r"<defs>\s*</defs>", "", body)).strip()
    classes = f' class="{shown}"' if shown else ""
    names = f'role="img" aria-labelledby="{prefix}t {prefix}d"'
    head = f'<title id="{prefix}t">{escape(plain(title))}</title><desc id="{prefix}d">{escape(plain(describes))}</desc>'
    return f'<svg{classes} viewBox="0 0 {size[0]} {size[1]}" {names}>{head}\n{body}\n</svg>'


def is_wide(axes: Axes) -> bool:
    """Whether there is room for many ticks from left to right."""
    return axes.figure.bbox.width > 600


def digest(text: str) -> int:
    """A number for a text, the same in every process."""
    return zlib.crc32(text.encode("utf-8", errors="backslashreplace"))


def _with_variables(style: re.Match[str]) -> str:
    text = _FONT.sub("", style[0])
    return re.sub(r"#fe[0-9a-f]{4}", lambda found: _VARIABLES.get(found[0], found[0]), text)
