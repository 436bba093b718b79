"""A real browser without a screen: pages are opened in it, measured, photographed and printed. It speaks the DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
LIMIT_S = 120.0
_NOISE = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
_TO_BROWSER, _FROM_BROWSER = 3, 4
"""Descriptors that the browser reads and writes the protocol on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What happened while a page was loaded."""

    noise: list[str]
    """Errors, warnings and output of the console."""
    requests: list[str]
    """Every address that was asked for."""
    overflow: int
    """Pixels by which the page is wider than its window."""


class Browser:
    """One window."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.mkdtemp(prefix="browser-")
        read_end, self._write = os.pipe()
        self._read, write_end = os.pipe()
        switches = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={self._profile}"]
        # A shell puts the pipes where the browser looks for them: this process may have other files there.
        script = f'exec "$0" "$@" {_TO_BROWSER}<&{read_end} {_FROM_BROWSER}>&{write_end}'
        argv = ["bash", "-c", script, program, *switches, "about:blank"]
        self._process = subprocess.Popen(argv, pass_fds=(read_end, write_end), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(read_end)
        os.close(write_end)
        self._sent, self._session, self._rest = 0, "", b""
        self._events: list[dict[str, Any]] = []
        page = next(each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """Ends the browser."""
        with contextlib.suppress(OSError, AssertionError):
            self._session = ""
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, page: Path, *, width: int = 1280, dark: bool = False, media: str = "") -> Opened:
        """Loads a file into a window of that width; `media`: as on paper ("print")."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self._events.clear()
        self.call("Page.navigate", url=page.absolute().as_uri())
        self._until(lambda: any(event["method"] == "Page.loadEventFired" for event in self._events))
        overflow = int(self.ask("document.documentElement.scrollWidth - window.innerWidth"))
        noise = [json.dumps(event["params"])[:300] for event in self._events if event["method"] in _NOISE]
        asked = [event["params"]["request"]["url"] for event in self._events if event["method"] == "Network.requestWillBeSent"]
        return Opened(noise=noise, requests=asked, overflow=overflow)

    def ask(self, expression: str) -> Any:
        """What an expression is worth in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def photograph(self) -> bytes:
        """The whole page as PNG."""
        size = self.ask("[window.innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], 16000), "scale": 1}
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"])

    def print(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command's answer; what the browser tells meanwhile is kept."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters, **({"sessionId": self._session} if self._session else {})}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answers: list[dict[str, Any]] = []
        self._until(lambda: bool(answers), answers)
        assert "error" not in answers[0], answers[0]
        found: dict[str, Any] = answers[0]["result"]
        return found

    def _until(self, is_over: Callable[[], bool], answers: list[dict[str, Any]] | None = None) -> None:
        end = time.monotonic() + LIMIT_S
        while not is_over():
            assert time.monotonic() < end, "the browser does not answer"
            message = self._message()
            if message.get("id") == self._sent and answers is not None:
                answers.append(message)
            elif "method" in message:
                self._events.append(message)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._read, 1 << 20)
            assert data, "the browser is gone"
            self._rest += data
        text, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        return message


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """A browser for a while. Skips the test where there is none, or fails it where FTLAUNCH_REQUIRE_BROWSER is set."""
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        (pytest.fail if os.environ.get("FTLAUNCH_REQUIRE_BROWSER") else pytest.skip)("no chromium is installed (Debian: apt-get install chromium)")
    browser = Browser(program)
    try:
        yield browser
    finally:
        browser.close()
