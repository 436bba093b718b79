"""Builds the cache of a spec's data: `python -m ftcore.data_report.prepare FOLDER`, started by `ftlaunch data prepare`."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from ftcore import stop_request
from ftcore.data_report.sets import set_names
from ftcore.prepare import prepare_data
from ftcore.source import resolve_tokenizer_source
from ftcore.spec.data_report import DataRequestDir
from ftcore.spec.resolved import load_resolved
from ftcore.spec.run_dir import RunDir, write_atomic

PREPARED_ANSWER_VERSION = 1


def main(folder: RunDir) -> None:
    """Writes answer.json: seconds, cache, and by name every set with its key and the fields of its PreparedSet. Raises FtError as `prepare_data` does."""
    stop_request.stop_anywhere()
    resolved = load_resolved(folder.resolved)
    started = time.monotonic()
    # The weights of a hub model are fetched by the launch.
    prepared = prepare_data(resolved, resolve_tokenizer_source(resolved.spec.model, Path(resolved.cache_dir)))
    data, names = resolved.spec.data, set_names(resolved.spec.data)
    of_key = {data.training_keys[name]: each for name, each in prepared.train.items()}
    of_key |= {data.held_out_keys[name]: each for name, each in prepared.eval.items()}
    sets = {names[key]: {"key": key, "bytes": Path(each.arrow).stat().st_size, "tokens_read": each.tokens_read, **asdict(each)} for key, each in of_key.items()}
    answer = {
        "version": PREPARED_ANSWER_VERSION,
        "seconds": round(time.monotonic() - started, 3),
        "cache": resolved.cache_dir,
        "sets": sets,
        "streamed": [names[key] for key in data.keyed_training if key not in of_key],
    }
    write_atomic(DataRequestDir(folder.path).answer, json.dumps(answer, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    from ftcore.process import run_dir_argument, run_main

    run_main(main, run_dir_argument(sys.argv[1:]))
