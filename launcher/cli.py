"""The command `ftlaunch`. The one place that prints an FtError and sets the exit status."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import TextIO

# The rest is imported inside `main`, where Ctrl-C is handled.
from ftcore.spec.disk_errors import REMEDIES, disk_errno
from ftcore.spec.errors import INTERRUPT_STATUS_BASE, CheckpointError, FtError, Problem, SpecError

OUR_BUG = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line; returns the exit status."""
    try:
        _open_standard_streams()
        status = _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        _tell("stopped by SIGINT")
        status = INTERRUPT_STATUS_BASE + signal.SIGINT
    _flush()
    return status


def _open_standard_streams() -> None:
    """Gives descriptors 0 to 2 that were closed (`>&-`) to /dev/null, so that no file of ours gets one of their numbers.

    What a terminal's encoding has no bytes for is written as an escape.
    """
    for handle, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(handle)
        except OSError:
            # The lowest free number: those below are open by now.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(handle, "w" if handle else "r", encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    """Writes out what is left; a reader that went away or a full disk must not become another status at Python's own flush."""
    for stream in (sys.stdout, sys.stderr):
        if not _flushes(stream):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _flushes(stream: TextIO) -> bool:
    try:
        stream.flush()
    except OSError:
        return False
    return True


def _takes_output() -> bool:
    """Whether stdout still takes a line; an unbuffered one keeps nothing of what it failed to write."""
    with contextlib.suppress(OSError):
        sys.stdout.write("\n")
        return _flushes(sys.stdout)
    return False


def _run(arguments: list[str]) -> int:
    try:
        _require_readable_names(arguments)
        return _call(arguments)
    except FtError as error:
        print_error(error)
        return error.exit_status
    except SystemExit:
        # Click's answer to a reader of stdout that went away.
        return INTERRUPT_STATUS_BASE + signal.SIGPIPE
    except Exception as error:  # noqa: BLE001  the last resort: whatever it is, the user gets a line and a status
        if isinstance(error, OSError) and error.filename is None and not _takes_output():
            return INTERRUPT_STATUS_BASE + signal.SIGPIPE
        if isinstance(error, OSError) and disk_errno(error) is not None:
            print_error(known := _of_disk(error))
            return known.exit_status
        _tell(f"ftlaunch: this is our bug: {type(error).__name__}: {error}\n    its traceback, for a report: {_save_traceback()}")
        return OUR_BUG


def _of_disk(error: OSError) -> CheckpointError:
    """A full or read-only disk, or a file that may not be used: the user's to mend, whatever wrote there."""
    return CheckpointError(f"a file can't be written or read: {error.strerror or error}", where=str(error.filename or ""), fix=REMEDIES[disk_errno(error) or 0])


def _call(arguments: list[str]) -> int:
    import click

    from launcher.verbs import cli

    try:
        result = cli.main(arguments, prog_name="ftlaunch", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as asked:
        return asked.exit_code
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        return error.exit_code
    except click.Abort as error:
        raise KeyboardInterrupt from error


def _require_readable_names(arguments: list[str]) -> None:
    """Raises SpecError when the current folder is gone, or a name holds bytes that no text file could hold."""
    try:
        folder = os.getcwd()
    except OSError as error:
        raise SpecError("the current folder has been deleted", fix="cd to a folder that exists") from error
    named = {"the current folder": folder, "$FTLAUNCH_CACHE": os.environ.get("FTLAUNCH_CACHE", ""), "$HOME": os.environ.get("HOME", "")}
    named |= {f"argument {number}": text for number, text in enumerate(arguments, start=1)}
    wrong = [name for name, text in named.items() if not _is_text(text)]
    if wrong:
        fix = "rename it, or work elsewhere"
        raise SpecError([Problem(what=f"{named[name]!a} holds bytes that are not UTF-8 text", where=name, fix=fix) for name in wrong])


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def print_error(error: FtError) -> None:
    """The problems of an error on stderr, with their number when there are several."""
    count = len(error.problems)
    _tell(f"ftlaunch: {count} problems" if count > 1 else f"ftlaunch: {error}")
    for problem in error.problems if count > 1 else ():
        _tell(str(problem))


def _tell(text: str) -> None:
    """A line on stderr; one that can't be written is lost, and the status stays what it is."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _save_traceback() -> str:
    """The name of a file that holds the current traceback."""
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile("w", prefix="ftlaunch-bug-", suffix=".log", delete=False, encoding="utf-8") as file:
            traceback.print_exc(file=file)
    except OSError as error:
        return f"could not be saved ({error})"
    return file.name


if __name__ == "__main__":
    sys.exit(main())
