"""Compare two results of evaluations: `python -m ftcore.compare_evaluations BEFORE AFTER --to FOLDER`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ftcore.process import run_main
from ftcore.scoring.compare import compare
from ftcore.scoring.table import render_comparison
from ftcore.spec.evaluation import EvaluationDir
from ftcore.spec.run_dir import RunDir, write_atomic


def main(folder: RunDir, before: Path, after: Path) -> None:
    """Writes comparison.txt and comparison.json into `folder`. Raises CheckpointError or DataError when the two can't be compared."""
    paths = EvaluationDir(folder.path)
    comparison = compare(before, after)
    write_atomic(paths.comparison_table, render_comparison(comparison))
    write_atomic(paths.comparison, comparison.to_json())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ftcore.compare_evaluations")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    run_main(lambda folder: main(folder, given.before, given.after), RunDir(given.to.resolve()))
