"""Runs an evaluation: its folder is made and filled, then prepared, computed by ranks like a run's, shown, and compared."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from ftcore.spec.errors import CheckpointError
from ftcore.spec.evaluation import EvaluationDir, EvaluationRequest
from ftcore.spec.run_dir import RunDir
from launcher.approach import Approach
from launcher.attempts import describe
from launcher.backends.base import Launch
from launcher.backends.hosts import run_launch
from launcher.backends.steps import Steps
from launcher.children import stop_signals
from launcher.ds_config import render_ds_config
from launcher.environment import launch_environment
from launcher.folder_files import host_files
from launcher.progress import Progress
from launcher.run_folder import locked, make_named_folder, make_timed_folder, next_attempt, require_unused, short_model_name, shown, write_files

EVALUATIONS = "evaluations"
"""Folder for evaluations that nobody named: in the run's folder, else in the current one."""
TRAINING_KEYS = ("optimizer", "gradient_clipping", "zero_allow_untested_optimizer")
"""What inference has no use for in ds_config.json."""
AGAIN = "evaluate again"


def run_evaluation(folder: RunDir, request: EvaluationRequest, variables: Mapping[str, str], approach: Approach) -> None:
    """Evaluates into `folder` and shows the table. Raises the FtError of what failed, or RunStoppedError after a signal."""
    paths = EvaluationDir(folder.path)
    resolved = request.resolved
    progress = Progress(sys.stdout)
    with locked(folder) as lock_handle:
        require_unused(folder)
        write_files(
            {
                folder.ds_config: inference_config(render_ds_config(resolved)),
                **host_files(folder, resolved, approach, module="ftcore.evaluate_model"),
                paths.request: request.to_json(),
            }
        )
        progress.line(describe(folder, resolved, kind="evaluation"))
        launch = Launch(
            run_dir=folder,
            resolved=resolved,
            attempt=next_attempt(folder),
            environment=launch_environment(variables),
            lock_handle=lock_handle,
            prepare=(sys.executable, "-m", "ftcore.prepare_evaluation", str(folder.path)),
            export=None,
            advice=AGAIN,
            variables=variables,
            reach=approach.reach,
            master_addr=approach.master_addr,
            master_port=approach.master_port,
        )
        # Its text is a run's summary.
        run_launch(launch, progress)
    progress.line(_read(paths.table).rstrip())
    if request.against:
        run_comparison(Path(request.against), folder.path, folder.path, progress)
    progress.line(f"result: {shown(paths.result)}")


def run_comparison(before: Path, after: Path, to: Path | None, progress: Progress) -> None:
    """Compares two results and shows the table; `to` gets comparison.json and comparison.txt, None: nothing is kept. Raises as `run_evaluation`."""
    with contextlib.ExitStack() as stack:
        folder = to or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ftlaunch-compare-")))
        logs = folder / "logs" / "comparison"
        stop = stack.enter_context(stop_signals())
        argv = (sys.executable, "-m", "ftcore.compare_evaluations", str(before.absolute()), str(after.absolute()), "--to", str(folder))
        Steps(logs, launch_environment(), progress, stop, advice=lambda: "compare again").run("the comparison", "compare.log", argv)
        progress.line(_read(EvaluationDir(folder).comparison_table).rstrip())


def evaluation_folder(request: EvaluationRequest, output: Path | None) -> RunDir:
    """The folder that was named, else a new one called by time and model. Raises CheckpointError when it can't be made, or holds anything."""
    if output is not None:
        return make_named_folder(output)
    root = Path(request.path) if request.kind == "run" else Path.cwd()
    label = _checkpoint_label(request) if request.kind == "run" else short_model_name(request.name)
    return make_timed_folder(root / EVALUATIONS, label, time.localtime())


def _checkpoint_label(request: EvaluationRequest) -> str:
    chosen = "best" if request.best else "newest" if request.update is None else f"update_{request.update}"
    return f"{chosen}-{request.adapter}" if request.adapter else chosen


def require_result(path: Path) -> str:
    """The absolute path of an earlier result. Raises CheckpointError when nothing that looks like one is there."""
    file = EvaluationDir(path).result if path.is_dir() else path
    try:
        version = json.loads(file.read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "name a folder that `ftlaunch evaluate` wrote, or the evaluation.json in it"
        raise CheckpointError(f"there is no result of an evaluation in {path}", where="--against", fix=fix) from error
    if not re.fullmatch(r"[0-9]+", str(version)):
        raise CheckpointError(f"{file} is no result of an evaluation", where="--against", fix="name the folder of an evaluation")
    return str(path.absolute())


def inference_config(ds_config: str) -> str:
    """ds_config.json without what only training needs."""
    config = {key: value for key, value in json.loads(ds_config).items() if key not in TRAINING_KEYS}
    config["zero_optimization"].pop("offload_optimizer", None)
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"can't read {path}: {error.strerror}", where=str(path), fix=AGAIN) from error
