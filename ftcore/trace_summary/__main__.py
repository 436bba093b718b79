"""`python -m ftcore.trace_summary FOLDER [OUTPUT]`: writes summary.json and summary.html of the traces in FOLDER, or in the profile/ of the run there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ftcore.process import run_main
from ftcore.spec.errors import CheckpointError
from ftcore.spec.events import emit
from ftcore.spec.run_dir import RunDir, write_atomic
from ftcore.trace_summary.page import render_summary
from ftcore.trace_summary.run_facts import read_run_facts
from ftcore.trace_summary.summary import NOTHING_FIX, read_ranks, summarise, traces_in


def summarise_folder(folder: Path, output: Path | None) -> None:
    """Writes the summary beside the traces, or into `output`. Raises CheckpointError when there are none, or that can't be written."""
    if not folder.is_dir():
        raise CheckpointError(f"there is no folder {folder}", where=str(folder), fix=NOTHING_FIX)
    beside = RunDir(folder).profile(0).parent
    traces = beside if beside.is_dir() else folder
    paths = traces_in(traces)
    if RunDir(folder).resolved.is_file() and traces == folder:
        raise CheckpointError("the run in it recorded no profile", where=str(folder), fix=NOTHING_FIX)
    # RUN/profile itself may be named, too.
    run = read_run_facts(traces.parent if traces.name == beside.name else traces)
    ranks, problems = read_ranks(paths, lambda done, total: emit("progress", stage="summarise", done=done, total=total, text="reading traces"))
    summary = summarise(ranks, problems, run)
    target = output or traces
    try:
        write_atomic(target / "summary.json", json.dumps(summary, indent=1) + "\n")
        write_atomic(target / "summary.html", render_summary(summary))
    except OSError as error:
        raise CheckpointError(f"{target} can't be written: {error.strerror}", where="-o", fix="free some space, or choose another folder") from error


def main(arguments: list[str]) -> None:
    """Ends the process."""
    folder = Path(arguments[0]).absolute()
    output = Path(arguments[1]).absolute() if len(arguments) > 1 else None
    run_main(lambda run_dir: summarise_folder(run_dir.path, output), RunDir(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
