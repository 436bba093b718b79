"""Lists or clears away prepared samples: `python -m ftcore.data_report.gc FOLDER`, started by `ftlaunch data gc`."""

from __future__ import annotations

import sys
from pathlib import Path

from ftcore import stop_request
from ftcore.data.collect import Choice, collect, used_by
from ftcore.spec.data_report import DataRequestDir, load_request
from ftcore.spec.run_dir import RunDir, write_atomic


def main(folder: RunDir) -> None:
    """Writes answer.json, a `ftcore.data.collect.Collected`. Raises CheckpointError for a run to keep that was never prepared."""
    stop_request.stop_anywhere()
    paths = DataRequestDir(folder.path)
    request = load_request(paths.request)
    kept = used_by(Path(run) for run in request.keep)
    choice = Choice(older_than_days=request.older_than_days, kept=kept, nothing=request.older_than_days is None and not request.everything)
    write_atomic(paths.answer, collect(Path(request.cache), choice, dry_run=request.dry_run).to_json())


if __name__ == "__main__":
    from ftcore.process import run_dir_argument, run_main

    run_main(main, run_dir_argument(sys.argv[1:]))
