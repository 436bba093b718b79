"""Asks a process of the core to deal the prepared samples of a spec: the launcher has no arrays."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from ftcore.spec.deals import Case, DealsAsked, DealsDir, Dealt, read_dealt
from ftcore.spec.lengths import file_state, lengths_path, read_lengths
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from ftcore.spec.stored import stored_text
from launcher.backends.steps import Steps
from launcher.children import stop_signals
from launcher.environment import launch_environment
from launcher.failure import RunFailedError
from launcher.progress import Progress
from launcher.run_folder import write_files

AGAIN = "ask again: ftlaunch scale --simulate"


def prepared_files(resolved: ResolvedSpec) -> dict[str, str]:
    """Set -> its file of prepared samples; empty when any set was never prepared, has changed since, or is streamed."""
    data = resolved.spec.data
    if data.streaming:
        return {}
    found: dict[str, str] = {}
    for name, dataset in data.training.items():
        stored = read_lengths(lengths_path(Path(resolved.cache_dir), dataset, data, resolved.spec.model))
        if stored is None or not Path(stored.arrow).is_file() or file_state(dataset.path) != (stored.file_bytes, stored.modified_ns):
            return {}
        found[name] = stored.arrow
    return found


def real_deals(resolved: ResolvedSpec, arrows: dict[str, str], share: float, cases: tuple[Case, ...]) -> dict[int, Dealt]:
    """Ranks -> the deal of the first updates of a run on so many.

    Raises the FtError of the process (a damaged file, a sample longer than a micro-step), or RunStoppedError after a signal.
    """
    folder = Path(tempfile.mkdtemp(prefix="ftlaunch-deals-"))
    is_kept = False
    try:
        paths = DealsDir(folder)
        asked = DealsAsked(arrows=arrows, attention_share=share, cases=cases)
        write_files({paths.asked: stored_text(asked), RunDir(folder).resolved: resolved.to_json()})
        with stop_signals() as stop:
            steps = Steps(folder / "logs", launch_environment(), Progress(sys.stderr), stop, advice=lambda: AGAIN)
            steps.run("dealing the samples", "deals.log", (sys.executable, "-m", "ftcore.deals", str(folder)))
        return {each.ranks: each for each in read_dealt(paths.dealt)}
    except RunFailedError:
        # Its message names the log.
        is_kept = True
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)
