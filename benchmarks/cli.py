"""How long `ftlaunch --help`, `validate` and `plan` take over Python's own start: `python -m benchmarks.cli [--rounds N] [--out FILE]`.

Wall time of whole processes, commands taking turns, medians; with `--processor`, processor time (user and system), which says more
on a busy machine. The difference to `python -c pass` is what this project adds.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FTLAUNCH = str(Path(sys.executable).with_name("ftlaunch"))
SPEC = str(ROOT / "specs" / "smollm2-lora.yaml")
BARE = "python -c pass"
COMMANDS = {
    BARE: [sys.executable, "-c", "pass"],
    "ftlaunch --help": [FTLAUNCH, "--help"],
    "ftlaunch validate": [FTLAUNCH, "validate"],
    "ftlaunch validate SPEC": [FTLAUNCH, "validate", SPEC],
    "ftlaunch plan": [FTLAUNCH, "plan"],
    "ftlaunch plan --spec SPEC": [FTLAUNCH, "plan", "--spec", SPEC],
}


def main() -> None:
    """Measures and prints one line a command."""
    given = _arguments()
    if not Path(FTLAUNCH).exists():
        raise SystemExit(f"{FTLAUNCH} is not there: run `make install`")
    with tempfile.TemporaryDirectory() as empty:
        for command in COMMANDS.values():
            run(command, empty)  # reads files into memory and writes .pyc files
        times: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(given.rounds):
            for name, command in COMMANDS.items():
                times[name].append(run(command, empty, processor=given.processor))
    result = summarise(times)
    print(f"{'command':<26}{'median ms':>12}{'fastest ms':>12}{'over bare Python, ms':>24}")
    for name, row in result.items():
        print(f"{name:<26}{row['median_ms']:>12.0f}{row['fastest_ms']:>12.0f}{row['over_bare_ms']:>24.0f}")
    if given.out:
        given.out.write_text(json.dumps({"rounds": given.rounds, "commands": result}, indent=1) + "\n")


def run(command: list[str], folder: str, *, processor: bool = False) -> float:
    """Milliseconds of one process, or with `processor` of the processors that it kept busy. Raises CalledProcessError when it fails."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (busy if processor else wall) * 1000


def summarise(times: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Command -> median and fastest time, and the median over the rounds of what it took more than bare Python."""
    return {
        name: {
            "median_ms": median(values),
            "fastest_ms": min(values),
            "over_bare_ms": median(value - bare for value, bare in zip(values, times[BARE], strict=True)),
        }
        for name, values in times.items()
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cli", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--processor", action="store_true", help="processor time in place of wall time")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
