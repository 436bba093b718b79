"""A launch on this machine with small scripts in place of the real preparation, ranks and export; run as a program it prints and exits like ftlaunch."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

from ftcore.spec.errors import FtError
from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import DataSection, ModelSection, Spec, TrainingSet
from launcher.backends.base import Launch
from launcher.backends.hosts import run_launch, summary
from launcher.cli import print_error
from launcher.environment import process_environment
from launcher.node_script import ScriptContext, render_node_script
from launcher.progress import Progress
from launcher.run_folder import locked, next_attempt, write_files
from tests.unit.live_processes import ROOT


def resolved_for(slots: int = 2, host: str = "localhost") -> ResolvedSpec:
    """A resolved spec of one host."""
    spec = Spec(model=ModelSection(model_name_or_path="builtin:tiny-llama"), data=DataSection(train=TrainingSet(path="/d.jsonl")))
    return ResolvedSpec(spec=spec, hosts=(Host(name=host, slots=slots),), sources={}, cache_dir="/tmp")


def launch(folder: Path, progress: Progress) -> str:
    """Runs prepare.py, rank.py on two ranks and export.py of `folder`; those that are missing do nothing.

    With a module trained.py in place of rank.py the ranks are forked.
    """
    resolved, run_dir = resolved_for(), RunDir(folder / "run")
    run_dir.path.mkdir(exist_ok=True)

    def argv(name: str) -> tuple[str, ...]:
        script = folder / name
        return (sys.executable, str(script)) if script.exists() else ("true",)

    forks = (folder / "trained.py").exists()
    context = ScriptContext(
        run_dir=run_dir.path,
        launch_dir=ROOT,
        python=sys.executable,
        import_root=f"{ROOT}:{folder}" if forks else str(ROOT),
        master_addr="127.0.0.1",
        rank_command=(sys.executable, "-m", "trained", str(run_dir.path)) if forks else argv("rank.py"),
        import_once=forks,
    )
    write_files({run_dir.node_script(0): render_node_script(context, resolved.hosts, 0)})
    with locked(run_dir) as handle:
        given = Launch(
            run_dir=run_dir,
            resolved=resolved,
            attempt=next_attempt(run_dir),
            environment=process_environment(os.environ, {}, launch_id=uuid.uuid4().hex, import_root=str(ROOT)),
            lock_handle=handle,
            prepare=argv("prepare.py"),
            export=argv("export.py"),
        )
        return summary(given, run_launch(given, progress))


if __name__ == "__main__":
    try:
        sys.stdout.write(launch(Path(sys.argv[1]), Progress(sys.stdout)) + "\n")
    except FtError as error:
        print_error(error)
        sys.exit(error.exit_status)
