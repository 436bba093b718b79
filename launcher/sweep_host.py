"""`python -m launcher.sweep_host LAUNCH_ID`: kills what a launch left on this host, and prints how many processes that were. Standard library only."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from launcher.processes import sweep


def main(arguments: Sequence[str]) -> int:
    """Exit status 0, also when nothing was there; 2 for a wrong command line."""
    if len(arguments) != 1 or not arguments[0].isalnum():
        sys.stderr.write("usage: python -m launcher.sweep_host LAUNCH_ID\n")
        return 2
    sys.stdout.write(f"{sweep(arguments[0])}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
