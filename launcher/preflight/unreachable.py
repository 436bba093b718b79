"""Why a host gave no facts, from how ssh (or the shell there) ended and what it said: the cause and the fix. Pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from launcher.preflight.finding import Finding, error
from launcher.preflight.program import OLDEST_PYTHON

SSH_FAILED = 255
_NOT_FOUND = (126, 127)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """What is known of a host that did not answer."""

    host: str
    by_hand: str
    """How a user would run a command there: `ssh USER@HOST`, `srun -w HOST`, or a shell's name on this machine."""
    python: str
    status: int | None
    """Return code; None: it was still waited for."""
    shell_ran: bool
    stderr: str
    waited_s: float


_SSH_CAUSES: tuple[tuple[str, str, str], ...] = (
    ("Could not resolve hostname", "its name is unknown here", "correct the name in the hostfile, or add a `Host` entry with its HostName to ~/.ssh/config"),
    (
        "Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED|No .* host key is known",
        "its host key is not known, or another than before",
        "call `{by_hand}` once and compare the key it shows; after a reinstallation remove the old one first: ssh-keygen -R {host}",
    ),
    (
        "Permission denied|Too many authentication failures",
        "it does not let this user in without a password",
        "give it this user's public key (ssh-copy-id), start an agent that holds the key, or write USER@HOST; `{by_hand} true` must work without a question",
    ),
    ("Connection refused", "it refuses the connection: no ssh server listens there", "start sshd on it, or correct the port (port=N behind its slots)"),
    ("No route to host|Network is unreachable", "no network leads there", "see that it is up, and that this machine is on its network"),
    (
        "timed out|Operation now in progress|Connection timeout",
        "it does not answer",
        "see that it is up and that no firewall drops ssh; `{by_hand} true` must come back at once",
    ),
    (
        "Connection closed|Connection reset|kex_exchange_identification|Broken pipe",
        "its ssh server closed the connection",
        "see its log (journalctl -u ssh): MaxStartups, AllowUsers or a full process table does that",
    ),
    (
        "Bad configuration option|Bad owner or permissions|command-line: line|unknown option",
        "ssh here does not take its options",
        "correct ~/.ssh/config, cluster.ssh_options or $FTLAUNCH_SSH_ARGS",
    ),
)
"""What ssh's messages match -> cause, fix."""


def explain(silence: Silence) -> Finding:
    """The finding of a host that gave no facts; the last line of stderr is part of it."""
    cause, fix, check = _cause(silence)
    last = last_line(silence.stderr)
    said = f" ({last})" if last else ""
    where = {"host": silence.host, "by_hand": silence.by_hand, "python": silence.python}
    return error(silence.host, check, f"{silence.host}: {cause.format(**where)}{said}", fix.format(**where))


def last_line(stderr: str) -> str:
    """The last line of a text that says something, without control characters, at most 200 characters."""
    lines = [re.sub(r"[\x00-\x1f\x7f]", " ", line).strip() for line in stderr.splitlines()]
    return next((line[:200] for line in reversed(lines) if line), "")


def _cause(silence: Silence) -> tuple[str, str, str]:
    """Cause, fix (both with places to fill in) and the check that failed."""
    if silence.shell_ran:
        return _after_the_shell(silence)
    if silence.status is None:
        return (
            f"no answer within {silence.waited_s:.0f} s: no connection yet, or its shell does not start",
            "`{by_hand} true` must come back at once: see whether the host is overloaded, its home folder hangs, or a forced command runs there",
            "reach",
        )
    if silence.status == SSH_FAILED:
        for pattern, cause, fix in _SSH_CAUSES:
            if re.search(pattern, silence.stderr, re.IGNORECASE):
                return cause, fix, "reach"
    return f"no shell started there (exit status {silence.status})", "`{by_hand} true` must work, and its login shell must be able to run commands", "reach"


def _after_the_shell(silence: Silence) -> tuple[str, str, str]:
    """The same, when the shell on the host did start."""
    if silence.status in _NOT_FOUND or "not found" in silence.stderr.lower():
        fix = "install it at that path on {host} (an environment on a shared disk is the easiest), or launch with a python that all hosts have"
        return "lacks {python}", fix, "python"
    if "is older than" in silence.stderr:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return f"its {{python}} is older than {oldest}", "install the same environment there as here", "python"
    if silence.status is None:
        return (
            f"its shell answered, {{python}} did not within {silence.waited_s:.0f} s",
            "call `{by_hand} {python} --version`: a file system that hangs, or a very loaded host, does that",
            "python",
        )
    return f"{{python}} ended there with status {silence.status}", "call `{by_hand} {python} --version` and mend what it says", "python"
