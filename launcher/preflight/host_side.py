"""The probe's main loop on a host: one request, then orders, a JSON object a line; each is answered as soon as it is done.

It ends when its stdin does: nothing stays behind when the launcher is killed. Standard library alone: hosts are sent this file.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from launcher.interfaces import interface_addresses, interface_of, source_towards
from launcher.preflight.facts import gather, resolve
from launcher.preflight.meeting import Meeting, connect_all

MARK = "ftlaunch-probe "
"""Begins each line of an answer; what a login script prints does not."""

_OUTPUT = threading.Lock()
_WRITTEN: list[str] = []
"""Files of the exchange, which go when this process does."""


def main() -> None:
    """Serves until stdin ends, then ends the process, whatever its threads wait for."""
    os.umask(0o077)
    meeting = Meeting()
    verbs: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
        "facts": gather,
        "time": lambda order: {"time": time.time()},
        "folders": exchange,
        "route": route,
        "listen": meeting.listen,
        "connect": connect_all,
    }
    for line in sys.stdin.buffer:
        order = json.loads(line)
        # Each in a thread of its own: one that waits for a dead file system must not hold up the others.
        threading.Thread(target=_answer, args=(verbs[order["do"]], order), daemon=True).start()
    _forget()
    os._exit(0)


def _forget() -> None:
    """Removes what was written here; not longer than a second, for a disk that hangs."""

    def remove() -> None:
        for path in _WRITTEN:
            with contextlib.suppress(OSError):
                os.unlink(path)

    thread = threading.Thread(target=remove, daemon=True)
    thread.start()
    thread.join(1.0)


def _answer(verb: Callable[[Mapping[str, Any]], dict[str, Any]], order: Mapping[str, Any]) -> None:
    try:
        answer = verb(order)
    except Exception as error:  # noqa: BLE001  the launcher must hear of it, whatever it was
        answer = {"error": f"{type(error).__name__}: {error}"}
    text = MARK + json.dumps({"id": order["id"], **answer}) + "\n"
    with _OUTPUT:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError:
            os._exit(0)


def exchange(order: Mapping[str, Any]) -> dict[str, Any]:
    """Looks in each folder for the launcher's file and writes one of its own. Returns name -> `seen` (whether it was there, with the same text) and `error`."""
    return {"folders": {name: _exchange(probe, order["greeting"], order["own"]) for name, probe in order["files"].items()}}


def _exchange(probe: str, greeting: str, own: str) -> dict[str, Any]:
    seen, error = False, ""
    try:
        with open(probe, encoding="utf-8") as file:
            seen = file.read() == greeting
    except OSError as failure:
        error = failure.strerror or str(failure)
    try:
        # Without the launcher's file this is another folder of the same name; writing there would help nobody.
        if seen:
            with open(f"{probe}.{own}", "x", encoding="utf-8") as file:
                _WRITTEN.append(file.name)
                file.write(f"{greeting} {own}")
    except OSError as failure:
        error = failure.strerror or str(failure)
    return {"seen": seen, "error": error, "hostname": socket.gethostname()}


def route(order: Mapping[str, Any]) -> dict[str, Any]:
    """For each target: the own `source` and `interface` on the way there, and the `addresses` that a name stands for here."""
    own = interface_addresses()
    found = {}
    for target in order["targets"]:
        source = source_towards(target, order["port"]) or ""
        found[target] = {"source": source, "interface": interface_of(source, own) or "" if source else "", "addresses": resolve(target)}
    return {"routes": found}
