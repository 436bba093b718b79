"""Scalars for Weights & Biases: one run there for all attempts, with the resolved spec as its config."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from ftcore.spec.run_dir import RunDir, write_atomic
from ftcore.spec.run_sections import LoggingSection

INIT_S = 20.0
"""How long the server has to answer."""
PROJECT = "ftlaunch"
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASS|CREDENTIAL|KEY", re.IGNORECASE)
_HIDDEN = "(hidden)"


class WandbWriter:
    """A run in W&B; where its server can't be reached, the same in RUN/wandb, for `wandb sync`."""

    def __init__(self, logging: LoggingSection, run_dir: RunDir, *, tell: Callable[[str], None]) -> None:
        # Takes a second to import.
        import wandb

        settings = wandb.Settings(console="off", save_code=False, disable_code=True, disable_git=True, disable_job_creation=True, init_timeout=INIT_S)
        given = {
            "dir": str(run_dir.path),
            "id": run_id(run_dir),
            "resume": "allow",
            "name": logging.run_name or run_dir.path.name,
            "project": logging.wandb_project or os.environ.get("WANDB_PROJECT") or PROJECT,
            "entity": logging.wandb_entity or os.environ.get("WANDB_ENTITY") or None,
            "config": config_of(json.loads(run_dir.resolved.read_text(encoding="utf-8")), os.environ),
            "settings": settings,
        }
        self._end_service = wandb.teardown
        try:
            self._run = wandb.init(**given)
        except wandb.Error as error:
            why = " ".join(str(error).split())[:200]
            tell(f"wandb can't be reached ({why}): its numbers are kept in {run_dir.path / 'wandb'}, and `wandb sync` sends them later")
            # Its service still holds the run's id.
            self._end_service()
            self._run = wandb.init(**given, mode="offline")
        # W&B's own steps never go back, as a resume does.
        self._run.define_metric("update")
        self._run.define_metric("*", step_metric="update")

    def write(self, update: int, scalars: Mapping[str, float]) -> None:
        """Numbers of the state after `update` updates."""
        self._run.log({"update": update, **scalars})

    def close(self, *, failed: bool) -> None:
        """Sends what is held, and has it in the run's file."""
        self._run.finish(exit_code=int(failed))
        # The file's last records may still be in its service's memory, which a rank that ends at once would take with it.
        self._end_service()


def run_id(run_dir: RunDir) -> str:
    """The run's id in W&B: that of its first attempt."""
    try:
        known = run_dir.wandb_id.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        known = ""
    if not re.fullmatch(r"[0-9a-z]{8,64}", known):
        known = uuid.uuid4().hex[:16]
        write_atomic(run_dir.wandb_id, known + "\n")
    return known


def config_of(resolved: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """What W&B shows of a resolved spec: its keys, without the values of variables, and without any secret of `environment` wherever it stands."""
    secrets = [value for name, value in environment.items() if _SECRET_NAME.search(name) and len(value) >= 8]
    shown = _without({**dict(resolved["spec"]), "hosts": resolved["hosts"]}, secrets)
    return dict(shown)


def _without(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: sorted(each) if key == "environment" and isinstance(each, Mapping) else _without(each, secrets) for key, each in value.items()}
    if isinstance(value, list):
        return [_without(each, secrets) for each in value]
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, _HIDDEN)
    return value
