"""What fits on a terminal, and what its locale can show; the progress line on a real pseudo-terminal, in a pipe, and where no terminal is."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from launcher.progress import evaluation_line, progress_bar, update_line
from launcher.terminal_text import columns_of, cut, encodable, fit, is_ascii_only, rewrites_lines

EVENT = {
    "event": "update",
    "update": 12,
    "total_updates": 100,
    "epoch": 0.12,
    "loss": 5.673,
    "learning_rate": 2e-5,
    "tokens_per_s": 3351.0,
    "supervised_tokens_per_s": 2084.0,
    "peak_memory_bytes": 2**29,
    "seconds": 0.5,
}
SHOW = """
import sys
from launcher.progress import Progress
progress = Progress(sys.stdout)
for update in (1, 2, 3):
    progress.show({**%r, "update": update, "total_updates": 3})
progress.show({"event": "progress", "stage": "prepare", "done": 1, "total": 2, "text": "d\\u00e4ten/\\u6f22\\u5b57" * 20})
progress.show({"event": "note", "text": "\\u00e4 note"})
"""


@pytest.mark.parametrize(
    ("width", "last"),
    [
        (300, "epoch 0.12"),
        (110, "0.5 GiB"),
        (95, "0.5 GiB"),
        (78, "0.5 GiB"),
        (79, "0.5 GiB"),
        (60, "ETA 0:00:44"),
        (40, "lr 2.00e-05"),
        (14, "update 12/100"),
        (5, "updat"),
    ],
)
def test_what_matters_most_is_what_fits(width: int, last: str) -> None:
    line = update_line(EVENT, 44.0, width)
    assert len(line) <= width and line.endswith(last) and line.startswith("updat")
    assert ("supervised tokens/s" in line, "sup tok/s" in line) == (width >= 95, 70 <= width < 95)


def test_wide_characters_take_two_columns() -> None:
    assert columns_of("漢字a\u0301") == 5
    assert cut("漢字", 3) == "漢" and cut("a\nb\tc\rd", 9) == "a b c d" and cut("x", 0) == ""
    assert fit([["a", "b"]], 4) == "a  b" and fit([["abc", "d"]], 4) == "abc" and fit([["abcdef"]], 4) == "abcd"


@pytest.mark.parametrize(
    ("encoding", "environment", "ascii_only"),
    [
        ("utf-8", {"LANG": "de_DE.UTF-8"}, False),
        ("UTF8", {"LC_CTYPE": "C.UTF-8", "LANG": "C"}, False),
        ("utf-8", {"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, True),
        ("utf-8", {}, True),
        ("iso-8859-1", {"LANG": "de_DE.UTF-8"}, True),
        (None, {"LANG": "de_DE.UTF-8"}, True),
    ],
)
def test_what_a_locale_shows(encoding: str | None, environment: dict[str, str], ascii_only: bool) -> None:
    assert is_ascii_only(encoding, environment) is ascii_only
    assert progress_bar(1, 2, ascii_only=ascii_only) == ("#" * 12 + "-" * 12 if ascii_only else "█" * 12 + "░" * 12) + "  50 %"


def test_characters_that_an_encoding_lacks() -> None:
    assert encodable("ä漢", "iso-8859-1") == "ä?" and encodable("ä漢", "ascii") == "??" and encodable("ä漢", None) == "ä漢"
    assert encodable("\udc80", "utf-8") == "\udc80", "a name of a file that is no UTF-8 passes as it is"


def test_terminals_that_rewrite_nothing() -> None:
    assert rewrites_lines(True, {"TERM": "xterm"}) and rewrites_lines(True, {})
    assert not rewrites_lines(True, {"TERM": "dumb"}) and not rewrites_lines(False, {"TERM": "xterm"})


def test_an_evaluation_says_its_perplexity() -> None:
    """K06: larger than any number is inf, and no error."""
    assert evaluation_line({"update": 3, "loss": 2.0, "perplexity": 7.389, "set": "eval"}).endswith("loss 2.0000 per supervised token, perplexity 7.389")
    assert evaluation_line({"update": 3, "loss": 800.0, "perplexity": None, "set": "hard"}) == (
        "evaluation of hard after update 3: loss 800.0000 per supervised token, perplexity inf"
    )
    assert evaluation_line({"update": 3, "loss": "nan", "perplexity": "nan"}).endswith("loss nan per supervised token, perplexity nan")
    assert evaluation_line({"update": 3, "loss": 1.0}).endswith("per supervised token")


def shown(tmp_path: Path, *, columns: int = 0, **variables: str) -> bytes:
    """What SHOW writes to a pseudo-terminal of so many columns, or to a file (0)."""
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "LC_ALL", "LC_CTYPE", "LANG", "PYTHONIOENCODING")}
    argv = [sys.executable, "-c", SHOW % EVENT]
    if not columns:
        with (tmp_path / "out").open("wb") as out:
            subprocess.run(argv, env={**environment, **variables}, stdout=out, check=True, timeout=60)
        return (tmp_path / "out").read_bytes()
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(argv, env={**environment, "TERM": "xterm", **variables}, stdout=theirs)
    os.close(theirs)
    found = b""
    try:
        while chunk := os.read(ours, 65536):
            found += chunk
    except OSError:
        # What a terminal answers once nobody writes to it any more.
        pass
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return found


@pytest.mark.parametrize("columns", [33, 80, 7])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, columns: int) -> None:
    text = shown(tmp_path, columns=columns, LANG="C.UTF-8", NO_COLOR="1").decode()
    for line in text.replace("\r\n", "\n").split("\n"):
        for part in line.split("\r\x1b[K"):
            assert "\x1b" not in part and "\r" not in part, "nothing but the rewriting itself"
            assert columns_of(part) < max(columns, 8) or part == "ä note"


def test_under_a_locale_without_utf8(tmp_path: Path) -> None:
    text = shown(tmp_path, columns=80, LC_ALL="C")
    assert b"#" * 12 + b"-" * 12 + b"  50 %" in text and "█".encode() not in text
    latin = shown(tmp_path, LANG="C.UTF-8", PYTHONIOENCODING="iso-8859-1")
    assert b"\xe4 note\n" in latin and b"??" in latin, "what it lacks is a question mark, and the line is there"


@pytest.mark.parametrize("columns", [0, 80])
def test_a_file_and_a_dumb_terminal_get_plain_lines(tmp_path: Path, columns: int) -> None:
    """As under Slurm: no carriage return, no escape, whole lines."""
    text = shown(tmp_path, columns=columns, LANG="C.UTF-8", TERM="dumb").replace(b"\r\n", b"\n")
    assert b"\r" not in text and b"\x1b" not in text
    lines = text.decode().splitlines()
    assert lines[0].startswith("update 1/3  loss 5.6730  lr 2.00e-05  ETA") and lines[0].endswith(
        "2,084 supervised tokens/s  3,351 tokens/s  0.5 GiB  epoch 0.12"
    )
    assert lines[1].startswith("update 3/3") and lines[-1] == "ä note"
