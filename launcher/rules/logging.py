"""Rules about the section logging: what numbers are sent to is installed, and known."""

from __future__ import annotations

import importlib.util

from ftcore.spec.errors import Problem
from ftcore.spec.sections import Spec
from launcher.rules.rule import Findings, Rule
from launcher.spec_source import Draft

_WHERE = "logging.report_to"
_NEEDS = {"tensorboard": "TensorBoard", "wandb": "W&B"}
"""Place, which is the name of its package, as well -> what people call it."""
_WANDB_KEYS = ("run_name", "wandb_project", "wandb_entity")


def _installed(spec: Spec, draft: Draft) -> Findings:
    for name in spec.logging.report_to:
        if name in _NEEDS and importlib.util.find_spec(name) is None:
            what = f"{_NEEDS[name]} needs the package {name}, which is not installed"
            yield Problem(what=what, where=_WHERE, fix=f"pip install 'ftlaunch[{name}]', or take {name} out")


def _read_by_wandb(spec: Spec, draft: Draft) -> Findings:
    # Given as an empty list, it turns reporting off and leaves the rest for later.
    is_off = draft.given(_WHERE) and not spec.logging.report_to
    for name in _WANDB_KEYS if "wandb" not in spec.logging.report_to and not is_off else ():
        if draft.given(f"logging.{name}"):
            what = f"{name} has no effect without wandb in logging.report_to"
            yield Problem(what=what, where=f"logging.{name}", fix="add report_to: [wandb], or remove it")


LOGGING_RULES = (
    Rule((_WHERE,), _installed),
    Rule((_WHERE, *(f"logging.{name}" for name in _WANDB_KEYS)), _read_by_wandb),
)
