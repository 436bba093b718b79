"""Random states come back to the bit, and what can't come back is told."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ftcore.checkpoint.rng import capture_rng, load_rng
from ftcore.spec.errors import CheckpointError

Draws = tuple[float, list[float], list[float]]


def draw() -> Draws:
    """The next numbers of python, numpy and torch; odd numbers of normal ones, so that the spare half of a pair counts too."""
    return random.gauss(0, 1), np.random.randn(3).tolist(), torch.randn(3).tolist()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "rng.json"
    path.write_text(capture_rng(), encoding="utf-8")
    return path


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


def test_the_next_draws_are_those_after_the_capture(tmp_path: Path) -> None:
    """F14: of python, numpy and torch, from a file without pickle."""
    draw()
    path = tmp_path / "rng.json"
    path.write_text(capture_rng(), encoding="utf-8")
    expected = [draw(), draw()]
    for _ in range(700):  # more than the 624 words that a state holds
        draw()
    assert load_rng(path) == ""
    assert [draw(), draw()] == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is no such accelerator to be without")
def test_saved_on_an_accelerator_and_there_is_none(saved: Path) -> None:
    """F14: the rest is restored, and the loss is told."""
    expected = draw()
    change(saved, accelerator="AAAA")
    assert "written on an accelerator and the run goes on on the CPU" in load_rng(saved)
    assert draw() == expected


def test_saved_on_the_cpu_and_there_is_an_accelerator(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F14: the other way round."""
    change(saved, accelerator=None)
    expected = draw()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "written on the CPU and the run goes on on an accelerator" in load_rng(saved)
    assert draw() == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"python": [3]},
        {"python": [3, [2**80] * 625, None]},
        {"numpy": ["MT19937", [2**40] * 624, 0, 0, 0.0]},
        {"numpy": None},
        {"torch": "AAAA"},
        {"torch": None},
    ],
)
def test_a_state_that_is_none(changes: dict[str, Any], saved: Path) -> None:
    """F14: training never goes on unseeded."""
    change(saved, **changes)
    with pytest.raises(CheckpointError, match="random state can't be restored"):
        load_rng(saved)
