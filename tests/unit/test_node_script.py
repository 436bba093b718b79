"""The text of the node scripts, and that bash reads it as it is meant."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ftcore.spec.resolved import Host
from launcher.node_script import ScriptContext, render_node_script

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "node_script"
HOSTS = (Host(name="alpha", slots=2, user="trainer"), Host(name="beta", slots=2, slot_ids=(0, 2)))


def context(run_dir: str = "/runs/a b", import_root: str = "/src", python: str = "/venv/bin/python", launch_dir: str = "/home/me/it's") -> ScriptContext:
    command = (python, "-m", "ftcore.run", run_dir)
    return ScriptContext(
        run_dir=Path(run_dir),
        launch_dir=Path(launch_dir),
        python=python,
        import_root=import_root,
        master_addr="alpha",
        rank_command=command,
        import_once=True,
    )


def test_golden_scripts() -> None:
    for rank in range(2):
        assert render_node_script(context(), HOSTS, rank) == (GOLDEN / f"node_{rank:02d}.sh").read_text()


def test_an_installed_ftlaunch_needs_no_pythonpath() -> None:
    assert "PYTHONPATH" not in render_node_script(context(import_root=""), HOSTS, 0)


def test_bash_reads_it_as_meant(tmp_path: Path) -> None:
    odd = tmp_path / "a $HOME `x` 'q' \"d\" ; é\n"
    odd.mkdir()
    shows = odd / "python"
    shows.write_text('#!/bin/sh\npwd\nprintf "%s|" "$MASTER_ADDR:$MASTER_PORT" "$PYTHONPATH" "$PYTHONSAFEPATH" "$@"\n')
    shows.chmod(0o755)
    text = render_node_script(context(run_dir=str(odd), import_root=str(odd), python=str(shows), launch_dir=str(odd)), HOSTS, 1)
    script = tmp_path / "node.sh"
    script.write_text(text)
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": "/x", "MASTER_PORT": "1234"}
    shown = subprocess.run(["bash", str(script), "--control", "both"], env=env, capture_output=True, text=True, check=True).stdout
    arguments = ["-m", "launcher.node", "--run-dir", str(odd), "--host", "beta", "--node-rank", "1", "--nodes", "2", "--local-ranks", "2"]
    arguments += [
        "--first-rank",
        "2",
        "--world-size",
        "4",
        "--devices",
        "0,2",
        "--import-once",
        "--control",
        "both",
        "--",
        str(shows),
        "-m",
        "ftcore.run",
        str(odd),
    ]
    assert shown == f"{odd}\n" + "".join(f"{part}|" for part in ["alpha:1234", f"{odd}:/x", "1", *arguments])
