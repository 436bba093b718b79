"""Specs of every kind, resolved: what was decided and by whom, and the DeepSpeed configuration, against files that a change must be seen in.

`FTLAUNCH_UPDATE_GOLDEN=1 python -m pytest tests/unit/test_golden_specs.py` writes them anew.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import shutil
from pathlib import Path

import pytest

from ftcore.spec.document import dotted, leaves
from ftcore.spec.resolved import ResolvedSpec
from launcher.resolve import Options, Resolution, read_and_resolve

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "specs"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.yaml"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own as the current one, with the files that the specs name."""
    for path in GOLDEN.iterdir():
        if path.suffix not in (".txt", ".yaml"):
            shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FTLAUNCH_CACHE", "cache")
    return tmp_path


def resolution(name: str, folder: Path) -> Resolution:
    shutil.copy(GOLDEN / f"{name}.yaml", folder / "spec.yaml")
    return read_and_resolve(Options(spec_path="spec.yaml"))


def told(resolved: ResolvedSpec, *, defaults: bool) -> str:
    """A line a value with who set it, without the defaults unless they are wanted; hosts first."""
    lines = [f"{host.name} x {host.slots}" for host in resolved.hosts]
    for path, value in leaves(json.loads(json.dumps(dataclasses.asdict(resolved.spec)))):
        source = resolved.sources.get(dotted(path), "unset")
        if defaults or source not in ("default", "unset"):
            lines.append(f"{dotted(path)} = {json.dumps(value)}  ({source})")
    return "\n".join(lines) + "\n"


def compare(text: str, golden: Path) -> None:
    if os.environ.get("FTLAUNCH_UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    held = golden.read_text(encoding="utf-8").splitlines()
    difference = "\n".join(difflib.unified_diff(held, text.splitlines(), golden.name, "now", lineterm="", n=1))
    assert not difference, difference


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str, folder: Path) -> None:
    found = resolution(name, folder)
    compare(told(found.resolved, defaults=name == "defaults").replace(str(folder), "/here"), GOLDEN / f"{name}.resolved.txt")
    compare(found.ds_config.replace(str(folder), "/here"), GOLDEN / f"{name}.ds_config.txt")
    assert ResolvedSpec.from_json(found.resolved.to_json()) == found.resolved


@pytest.mark.parametrize("name", NAMES)
def test_deepspeed_takes_it(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B09: nothing in it is "auto". One rank: without a process group DeepSpeed takes the world for one."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config import DeepSpeedConfig

    text = resolution(name, folder).ds_config
    assert '"auto"' not in text
    DeepSpeedConfig({**json.loads(text), "train_batch_size": 1})


def test_there_are_twenty_of_every_kind() -> None:
    assert len(NAMES) >= 20
    texts = {path.stem: path.read_text(encoding="utf-8") for path in GOLDEN.glob("*.yaml")}
    for word in ("lora", "qlora", "sgd", "offload_param", "hosts", "scheduler", "eval_sets", "overrides", "config:", "fp16"):
        assert any(word in text for text in texts.values()), word
