"""memory.txt and memory.json in the run's folder, written where the model is at hand, and never in the way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import ModelSection
from launcher.approach import Approach
from launcher.folder_files import host_files
from launcher.memory import run_files
from launcher.memory.run_files import memory_files
from launcher.resolve import Options, read_and_resolve
from launcher.transport import Reach, SshOptions


@pytest.fixture
def resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResolvedSpec:
    monkeypatch.chdir(tmp_path)
    return read_and_resolve(Options()).resolved


def test_a_run_has_its_plan(resolved: ResolvedSpec, tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    approach = Approach(reach=Reach(launcher="ssh", ssh=SshOptions(options=())), master_addr="127.0.0.1", master_port=None)
    files = host_files(run_dir, resolved, approach)
    assert "855,168 parameters" in files[run_dir.memory_txt]
    found = json.loads(files[run_dir.memory_json])
    assert found["memory"]["device_peak_bytes"] > 0
    other = host_files(run_dir, resolved, approach, module="ftcore.evaluate_model")
    assert run_dir.memory_txt not in other


def test_a_model_that_is_not_at_hand_has_none(resolved: ResolvedSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    spec = replace(resolved.spec, model=ModelSection(model_name_or_path="org/other", dtype="float32"))
    assert memory_files(RunDir(tmp_path), replace(resolved, spec=spec), {}) == {}


def test_a_fault_of_the_plan_keeps_no_run_from_starting(resolved: ResolvedSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_plan: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(run_files, "render_plan", fails)
    assert memory_files(RunDir(tmp_path), resolved, {}) == {}
