"""The user's own options of ssh, read as ssh reads them: none may take the host's place, or stdin and stdout, which are the line to the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_WITH_VALUE = "BbcDEeFIiJLlmOoPpQRSWw"
"""Letters of ssh(1) that a value follows."""
_REFUSED = {
    "f": "sends ssh into the background",
    "G": "only prints ssh's configuration",
    "N": "runs no command",
    "n": "closes stdin",
    "O": "only speaks to another ssh",
    "Q": "only prints what ssh can do",
    "s": "asks for a subsystem",
    "t": "makes a terminal of stdin and stdout",
    "V": "only prints ssh's version",
    "W": "joins stdin and stdout to a port",
}
_REFUSED_KEYS = {"forkafterauthentication", "remotecommand", "requesttty", "sessiontype", "stdinnull", "batchmode"}


def wrong_ssh_options(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Reason and fix of every option of ssh that can't be used here."""
    words = iter(options)
    for word in words:
        if word == "--" or not word.startswith("-") or word == "-":
            yield f"ssh would take '{word}' for the host or its command", "give options only, a value right after its option"
            continue
        for position, letter in enumerate(word[1:], start=1):
            if letter in _REFUSED:
                yield f"-{letter} {_REFUSED[letter]}, and the ranks' host is led over stdin and stdout", "remove it"
            if letter in _WITH_VALUE:
                value = word[position + 1 :] or next(words, "")
                yield from _wrong_value(letter, value)
                break


def _wrong_value(letter: str, value: str) -> Iterator[tuple[str, str]]:
    if not value:
        yield f"-{letter} needs a value", "give it as the next item of the list"
    key = value.replace("=", " ").split()[0].lower() if letter == "o" and value.split() else ""
    if key in _REFUSED_KEYS:
        yield f"-o {value.strip()} would change how the host is led over stdin and stdout, or let ssh ask questions", "remove it"
