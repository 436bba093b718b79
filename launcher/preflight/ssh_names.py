"""What a host's ssh name stands for: an alias of ~/.ssh/config has its own HostName, which only ssh knows."""

from __future__ import annotations

import os
import subprocess
import threading

from launcher.preflight.facts import resolve

_LIMIT_S = 5.0


class SshAddresses:
    """The addresses of one host, looked up beside other work."""

    def __init__(self, argv: tuple[str, ...], name: str) -> None:
        """`argv` is how the host is reached; anything but ssh leaves the name as it is."""
        self._found: list[str] = []
        self._thread = threading.Thread(target=self._look, args=(argv, name), daemon=True)
        self._thread.start()

    def get(self, limit_s: float) -> list[str]:
        """The addresses, in the resolver's order; none when they are unknown, or not known in time."""
        self._thread.join(max(0.0, limit_s))
        return list(self._found)

    def _look(self, argv: tuple[str, ...], name: str) -> None:
        self._found = resolve(ssh_host_name(argv) or name)


def ssh_host_name(argv: tuple[str, ...]) -> str:
    """The HostName that `ssh -G` gives for this command line; empty when it is no ssh's, or ssh does not say."""
    if os.path.basename(argv[0]) != "ssh":
        return ""
    try:
        ended = subprocess.run((argv[0], "-G", *argv[1:]), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    values = dict(line.split(" ", 1) for line in ended.stdout.splitlines() if " " in line)
    return values.get("hostname", "")
