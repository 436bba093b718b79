"""Norms that are clipped apart, without an engine: what is scaled, and when nothing is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import pytest

from ftcore.engine import Engine
from ftcore.train import step
from ftcore.train.step import ClipGroups

ENGINE = cast(Engine, object())
GROUPS = ClipGroups(group_of={"a.weight": 0, "b.weight": 1}, limits=(2.0, 0.0), names=("a", "default"))


def clipped(monkeypatch: pytest.MonkeyPatch, norms: list[float]) -> tuple[dict[str, float], int]:
    """(factor of each parameter, refused steps)."""
    factors: dict[str, float] = {}
    refused: list[Engine] = []

    def scale(engine: Engine, factor: Callable[[str], float]) -> None:
        factors.update({name: factor(name) for name in (*GROUPS.group_of, "frozen")})

    monkeypatch.setattr(step, "group_norms", lambda engine, group_of: norms)
    monkeypatch.setattr(step, "scale_gradients_", scale)
    monkeypatch.setattr(step, "refuse_step_", refused.append)
    assert step._clip_by_group(ENGINE, GROUPS) == norms
    return factors, len(refused)


def test_a_group_over_its_limit_is_scaled_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    factors, refused = clipped(monkeypatch, [8.0, 100.0])
    assert factors == {"a.weight": pytest.approx(0.25), "b.weight": 1.0, "frozen": 1.0} and not refused


@pytest.mark.parametrize("norm", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_takes_no_step_with_nothing(norm: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert clipped(monkeypatch, [norm, 1.0]) == ({}, 1)
