"""Rules of the section logging: where the numbers go must be installed, and keys of a tracker need that tracker."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from launcher.rules import logging
from tests.unit.test_training_rules import problems_of


@pytest.mark.parametrize(
    "text",
    [
        "logging: {report_to: [tensorboard, wandb], run_name: mine, wandb_project: chats, wandb_entity: us}",
        "logging: {report_to: []}",
        "logging: {report_to: [], run_name: for later}",
        "logging: {logging_steps: 5, phases: false}",
    ],
)
def test_fine(tmp_path: Path, text: str) -> None:
    assert problems_of(tmp_path, text) == []


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_package_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    known = importlib.util.find_spec

    def without(wanted: str, package: str | None = None) -> Any:
        return None if wanted == name else known(wanted, package)

    monkeypatch.setattr(logging.importlib.util, "find_spec", without)
    (problem,) = problems_of(tmp_path, "logging: {report_to: [tensorboard, wandb]}")
    assert problem.where == "logging.report_to" and f"needs the package {name}, which is not installed" in problem.what
    assert problem.fix == f"pip install 'ftlaunch[{name}]', or take {name} out" and problem.line == 4


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("logging: {report_to: [tensorbord]}", "logging.report_to", "did you mean `tensorboard`?"),
        ("logging: {report_to: [wandb, wandb]}", "logging.report_to", ""),
        ("logging: {report_to: wandb}", "logging.report_to", "write a list"),
        ("logging: {run_name: x}", "logging.run_name", "add report_to: [wandb], or remove it"),
        ("logging: {report_to: [tensorboard], wandb_project: x}", "logging.wandb_project", "no effect without wandb"),
        ("logging: {wandb_entity: x}", "logging.wandb_entity", "add report_to"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, where: str, words: str) -> None:
    found = problems_of(tmp_path, text)
    assert [problem.where.partition("[")[0] for problem in found] == [where]
    assert words in f"{found[0].what} {found[0].fix}"
