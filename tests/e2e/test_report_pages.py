"""Pages of runs in a real browser: nothing is loaded, nothing is too wide, everything can be read, in light and dark, on a screen, a phone and paper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftcore.report.findings import findings_page
from ftcore.report.one_run import page_of_run
from ftcore.report.several_runs import page_of_runs
from tests.e2e.browser import Browser
from tests.e2e.conftest import Cli
from tests.unit.made_runs import add_lines, made_run
from tests.unit.reported_runs import HOSTILE, START, long_run, viewed

OUTSIDE = """[...document.querySelectorAll('body *')].filter(each => !each.closest('.scroll') && !each.closest('svg') && each.getClientRects().length
  && (each.getBoundingClientRect().right > innerWidth + 1 || each.getBoundingClientRect().left < -1)).map(each => each.outerHTML.slice(0, 120))"""
CLIPPED = """[...document.querySelectorAll('svg text')].filter(each => each.getClientRects().length).filter(each => {
  const own = each.getBoundingClientRect(), all = each.closest('svg').getBoundingClientRect();
  return own.left < all.left - 3 || own.right > all.right + 3 || own.top < all.top - 3 || own.bottom > all.bottom + 3;
}).map(each => each.textContent)"""
TEXT_COLOURS = """[...new Set([...document.querySelectorAll('h1, p, td, th, dt, dd, .value, .label, .note, .state, svg text')]
  .filter(each => each.getClientRects().length)
  .map(each => each.closest('svg') ? getComputedStyle(each).fill : getComputedStyle(each).color))]"""
PAPER = "getComputedStyle(document.body).backgroundColor"
SMALL_TEXT = """Math.min(...[...document.querySelectorAll('svg text')].filter(each => each.getClientRects().length)
  .map(each => parseFloat(getComputedStyle(each).fontSize) * each.closest('svg').getBoundingClientRect().width / each.closest('svg').viewBox.baseVal.width))"""

KNOB = {"options": HOSTILE, "gives": HOSTILE, "costs": "20 % time", "is_enough": False, "may_resume": True}
FINDING = {
    "kind": "nan",
    "severity": "ended",
    "what": HOSTILE,
    "rank": 1,
    "host": HOSTILE,
    "update": 60,
    "phase": "forward",
    "time": START,
    "details": [HOSTILE],
    "causes": [HOSTILE],
    "evidence": [{"what": HOSTILE, "file": "events.jsonl"}],
    "knobs": [KNOB],
    "go_on": [f"ftlaunch --set {HOSTILE}"],
    "items": [{"name": HOSTILE, "predicted_bytes": 2**30, "usual_bytes": None, "here_bytes": 2**31}],
}
FOUND = {
    "schema": 1,
    "run": HOSTILE,
    "state": "failed",
    "attempt": 1,
    "update": 60,
    "total_updates": 60,
    "findings": [FINDING, FINDING | {"severity": "slow", "kind": HOSTILE}],
    "looked_at": [HOSTILE, "b"],
    "missing": [HOSTILE],
}
"""As `ftlaunch doctor` writes it."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run whose every text is hostile, one on 64 ranks that was resumed three times, one that has just begun, and several side by side."""
    folder = tmp_path_factory.mktemp("pages")
    hostile = long_run(folder / "hostile" / HOSTILE.replace("/", "_")[:80], hidden={"losses": {HOSTILE: 1.0, "b": 2.0}})
    resolved = json.loads(hostile.resolved.read_text(encoding="utf-8"))
    resolved["spec"]["model"]["model_name_or_path"] = resolved["sources"]["zero.stage"] = HOSTILE
    resolved["spec"]["data"] = {"train": {"path": HOSTILE * 20}}
    hostile.resolved.write_text(json.dumps(resolved), encoding="utf-8")
    evaluation = {"event": "evaluation", "set": HOSTILE, "loss": "nan", "update": 5, "time": START, "attempt": 1}
    add_lines(
        hostile.events, evaluation, {"event": HOSTILE, "text": HOSTILE, "time": START}, {"event": "finding", "kind": HOSTILE, "what": HOSTILE, "update": 9}
    )
    (hostile.path / "findings.json").write_text(json.dumps(FOUND), encoding="utf-8")
    wide = long_run(folder / "wide", updates=120, ranks=64, attempts=4)
    new = made_run(folder / "new")
    views = viewed(hostile.path, wide.path, new.path)
    texts = dict(zip(("hostile", "wide", "new"), map(page_of_run, views), strict=True)) | {
        "several": page_of_runs(views, (), (HOSTILE,)),
        "findings": findings_page(FOUND),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", ["hostile", "wide", "new", "several", "findings"])
def test_a_page_is_right_on_every_screen(browser: Browser, pages: dict[str, Path], name: str, width: int, dark: bool) -> None:
    opened = browser.open(pages[name], width=width, dark=dark)
    assert (opened.noise, opened.requests, opened.overflow) == ([], [pages[name].absolute().as_uri()], 0)
    assert browser.ask(OUTSIDE) == []
    assert browser.ask(CLIPPED) == []
    assert browser.ask("document.querySelectorAll('script, img, iframe, object, embed, link[rel=stylesheet], [onerror]').length") == 0
    ids = browser.ask("[...document.querySelectorAll('[id]')].map(each => each.id)")
    assert len(ids) == len(set(ids))
    paper = luminance(browser.ask(PAPER))
    assert (paper < 0.1) == dark
    unreadable = [colour for colour in browser.ask(TEXT_COLOURS) if contrast(luminance(colour), paper) < 4.5 and colour != browser.ask(PAPER)]
    assert unreadable == []
    if name not in ("new", "findings"):
        assert browser.ask(SMALL_TEXT) >= 9
        shown = browser.ask("[...document.querySelectorAll('svg[class]')].filter(each => each.getClientRects().length).map(each => each.className.baseVal)")
        assert set(shown) <= {"broad" if width == 1280 else "narrow"}
    assert browser.photograph().startswith(b"\x89PNG")


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)`, as WCAG 2 defines it."""
    parts = [float(part) / 255 for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: float, other: float) -> float:
    """Between 1 and 21, as WCAG 2 defines it."""
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def test_hostile_text_is_text(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"])
    shown = browser.ask("document.body.innerText")
    assert "<script>alert('x')</script>" in shown and "$\\frac{a}{b}$" in shown
    assert "\x1b" not in shown and "\u202e" not in shown


def test_paper_is_white_and_has_all_of_it(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["wide"], dark=True, media="print")
    assert luminance(browser.ask(PAPER)) == pytest.approx(1.0)
    assert browser.ask("[...document.querySelectorAll('svg.narrow, nav')].every(each => !each.getClientRects().length)")
    browser.open(pages["wide"])
    printed = browser.print()
    assert printed.startswith(b"%PDF") and 3 <= printed.count(b"/Type /Page\n") <= 12


def test_the_verb(cli: Cli) -> None:
    one, other = long_run(cli.folder / "runs" / "a"), long_run(cli.folder / "runs" / "b", updates=30)
    done = cli.run("report", "runs/a")
    assert (done.returncode, done.stdout, done.stderr) == (0, "report: runs/a/report.html\n", "")
    assert "<h1>a</h1>" in (one.path / "report.html").read_text(encoding="utf-8")
    several = cli.run("report", "runs", "-o", "both.html")
    assert (several.returncode, several.stdout) == (0, "report: both.html\n") and "2 runs side by side" in (cli.folder / "both.html").read_text(
        encoding="utf-8"
    )
    assert not (other.path / "report.html").exists()
    (cli.folder / "empty").mkdir()
    wrong = cli.run("report", "runs/a", "empty", "nowhere")
    assert wrong.returncode == 5 and "empty holds no run" in wrong.stderr and "nowhere holds no run" in wrong.stderr and "Traceback" not in wrong.stderr
    full = cli.run("report", "runs/b", "-o", "/proc/report.html")
    assert full.returncode == 5 and "can't write /proc/report.html" in full.stderr and "Traceback" not in full.stderr
    assert cli.run("report").returncode == 2
