"""One host's part in the trial of connections: it listens, and it connects to the others. Standard library alone: hosts are sent this file."""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from launcher.interfaces import interface_addresses, interface_of, source_towards

CONNECT_LIMIT_S = 5.0
_GREETING_BYTES = 64


class Meeting:
    """What this host listens on, until the process ends."""

    def __init__(self) -> None:
        self._listeners: list[socket.socket] = []

    def listen(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Listens where the order says and answers each connection with its greeting.

        `address` is the one to listen on; empty: that of `interface`, or the own one on the way to `towards`. Returns address, port and interface, or `error`.
        """
        addresses = interface_addresses()
        address = order["address"] or own_address(order["interface"], order["towards"], addresses)
        if not address:
            return {"error": f"nothing leads to {order['towards'][0]} from here"}
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, order["port"]))
            listener.listen(128)
        except OSError as error:
            listener.close()
            return {"error": os.strerror(error.errno or 0), "errno": error.errno, "address": address}
        self._listeners.append(listener)
        threading.Thread(target=_greet, args=(listener, order["greeting"].encode()), daemon=True).start()
        return {"address": address, "port": listener.getsockname()[1], "interface": interface_of(address, addresses)}


def own_address(interface: str, towards: tuple[str, int], addresses: Mapping[str, tuple[str, ...]]) -> str:
    """An address that others can reach this host by: of `interface` when one is named, else the source of a connection to `towards`; empty when there is none.

    Of an interface's addresses, the first of the same family as the target.
    """
    target = source_towards(towards[0], towards[1]) or ""
    if not interface:
        return target
    own = [address for address in addresses.get(interface, ()) if not address.startswith("fe80:")]
    return next((address for address in own if (":" in address) == (":" in target)), own[0] if own else "")


def connect_all(order: Mapping[str, Any]) -> dict[str, Any]:
    """Tries every target at once, 5 s at most. Returns `results`, in their order: `to`, `seconds`, `source`, `interface`, and `error` (empty: reached)."""
    targets = order["targets"]
    results: list[dict[str, Any]] = [{"to": target["to"], "error": f"no answer in {CONNECT_LIMIT_S:g} s"} for target in targets]

    def run(place: int) -> None:
        results[place] = connect(targets[place])

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(targets))]
    deadline = time.monotonic() + CONNECT_LIMIT_S + 0.5
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {"results": results}


def connect(target: Mapping[str, Any]) -> dict[str, Any]:
    """One connection to the target's address and port; the right one greets with the target's words."""
    begun = time.monotonic()
    source, error = "", ""
    try:
        with socket.create_connection((target["address"], target["port"]), timeout=CONNECT_LIMIT_S) as made:
            source = str(made.getsockname()[0]).partition("%")[0]
            made.settimeout(max(0.1, CONNECT_LIMIT_S - (time.monotonic() - begun)))
            if not hmac.compare_digest(_receive(made), target["greeting"].encode()):
                error = "something else answers there"
    except TimeoutError:
        error = f"no answer in {CONNECT_LIMIT_S:g} s"
    except (OSError, UnicodeError) as failure:
        # What the kernel says of a route that is forbidden (`blackhole`).
        forbidden = getattr(failure, "errno", None) == errno.EINVAL
        error = "a route there forbids it" if forbidden else getattr(failure, "strerror", None) or str(failure)
    source = source or source_towards(target["address"], target["port"]) or ""
    interface = interface_of(source, interface_addresses()) or "" if source else ""
    return {"to": target["to"], "seconds": time.monotonic() - begun, "source": source, "interface": interface, "error": error}


def _receive(made: socket.socket) -> bytes:
    received = b""
    while len(received) < _GREETING_BYTES:
        chunk = made.recv(_GREETING_BYTES)
        if not chunk:
            break
        received += chunk
    return received


def _greet(listener: socket.socket, greeting: bytes) -> None:
    while True:
        try:
            made, _ = listener.accept()
        except OSError:
            return
        with made, contextlib.suppress(OSError):
            made.sendall(greeting)
