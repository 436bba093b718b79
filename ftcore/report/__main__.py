"""`python -m ftcore.report FOLDER`: the page that FOLDER/request.json asks for."""

from __future__ import annotations

import sys

from ftcore.process import run_dir_argument, run_main
from ftcore.report.make import make_page
from ftcore.spec.report_request import ReportRequestDir, load_report_request
from ftcore.spec.run_dir import RunDir


def main(folder: RunDir) -> None:
    """Writes the page. Raises CheckpointError for a folder that is no run, or a page that can't be written."""
    make_page(load_report_request(ReportRequestDir(folder.path).request))


if __name__ == "__main__":
    run_main(main, run_dir_argument(sys.argv[1:]))
