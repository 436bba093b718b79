"""The probe as text: the modules that a host needs, and the shell command that runs them with a given Python."""

from __future__ import annotations

import shlex
from pathlib import Path

SHELL_MARK = "ftlaunch-shell"
"""What the shell on the host says before Python takes over."""
OLDEST_PYTHON = (3, 11)

_PACKAGES = ("launcher", "launcher.preflight")
_MODULES = (
    "launcher.interfaces",
    "launcher.preflight.code_digest",
    "launcher.preflight.accelerators",
    "launcher.preflight.facts",
    "launcher.preflight.meeting",
    "launcher.preflight.host_side",
)
"""In the order in which they can be run: each needs only those before it."""

_START = """\
import sys
if sys.version_info < {oldest!r}:
    sys.stderr.write("Python " + sys.version.split()[0] + " is older than {oldest[0]}.{oldest[1]}\\n")
    sys.exit(1)
import types
sys.path = [each for each in sys.path if each]
for name in {packages!r}:
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
for name, source in {sources!r}:
    sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), sys.modules[name].__dict__)
sys.modules[{main!r}].main()
"""


def probe_program() -> bytes:
    """A Python program of its own, without any file on the host. Python 3.0 reads it, to say that it is too old."""
    root = Path(__file__).resolve().parents[2]
    sources = [(name, root.joinpath(*name.split(".")).with_suffix(".py").read_text(encoding="utf-8")) for name in _MODULES]
    return _START.format(oldest=OLDEST_PYTHON, packages=_PACKAGES, sources=sources, main=_MODULES[-1]).encode()


def probe_command(python: str, length: int) -> str:
    """Shell text that runs the `length` bytes which arrive on stdin with `python`; what follows them is the program's own stdin."""
    return f"echo {SHELL_MARK}; exec {shlex.quote(python)} -c {shlex.quote(f'import sys; exec(sys.stdin.buffer.read({length}))')}"
