"""Compares the splits of a check once all are trained: `python -m ftcore.verify_loss VERIFICATION` writes verify.json and verify.txt."""

from __future__ import annotations

import json
import sys

from ftcore.process import run_dir_argument, run_main
from ftcore.spec.errors import TrainingError
from ftcore.spec.run_dir import RunDir, write_atomic
from ftcore.spec.verification import VerificationDir, load_verification
from ftcore.verification.parameters import read_gap
from ftcore.verification.records import read_records
from ftcore.verification.table import as_data, render
from ftcore.verification.verdict import judge


def main(run_dir: RunDir) -> None:
    """Writes the result, whether the splits agree or not. Raises TrainingError when the reference's updates moved nothing that could be compared."""
    paths = VerificationDir(run_dir.path)
    request = load_verification(paths.request)
    records = {split.name: read_records(paths.run(split.name), request.updates) for split in request.splits}
    gaps = {split.name: read_gap(paths.gap(split.name)) for split in request.others}
    if all(gap.moved == 0.0 for gap in gaps.values()):
        fix = "use a higher optimizer.learning_rate, or more --updates"
        raise TrainingError(f"{request.updates} updates of the reference moved no parameter: there is nothing to compare", where="optimizer", fix=fix)
    verdict = judge(records, gaps, precision=request.precision, optimizer=request.optimizer)
    write_atomic(paths.table, render(request, records, verdict))
    write_atomic(paths.result, json.dumps(as_data(request, records, verdict), indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    run_main(main, run_dir_argument(sys.argv[1:]))
