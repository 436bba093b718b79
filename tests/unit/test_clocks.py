"""The clock of a rank on a CPU, what names it, and what a rank is planned to cost."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from ftcore.attribution.clocks import HostClock, host_clock_id
from ftcore.batch.cost import sample_costs
from ftcore.feed.layout import Layout


def test_marks_are_monotonic_seconds() -> None:
    clock = HostClock()
    first = clock.mark()
    time.sleep(0.02)
    second = clock.mark()
    assert clock.seconds(second) - clock.seconds(first) >= 0.02
    assert clock.held_up(second) >= clock.held_up(first) >= 0.0
    assert clock.is_past(second) and not clock.is_aside()


def test_a_sleep_is_not_held_up() -> None:
    """Who sleeps wants no processor: what is planted in trials stays."""
    clock = HostClock()
    began = time.perf_counter()
    before = clock.mark()
    time.sleep(0.1)
    after = clock.mark()
    # A busy machine may hold it up once it has slept: of the whole time the sleep alone is sure.
    assert clock.held_up(after) - clock.held_up(before) <= time.perf_counter() - began - 0.1 + 0.01


def test_a_kernel_without_statistics_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, flags: int) -> int:
        raise FileNotFoundError(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        clock = HostClock(lambda: 5.0)
    assert (clock.seconds(clock.mark()), clock.held_up(clock.mark())) == (5.0, 0.0)


def test_a_clocks_name_is_that_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    name = host_clock_id()
    assert name == host_clock_id()

    def refuse(path: Path, encoding: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert host_clock_id() != name


def test_a_micro_step_costs_what_it_computes() -> None:
    lengths, share = np.array([10, 30]), 0.01
    packed = Layout(micro_batch_tokens=100, attention_share=share)
    padded = Layout(micro_batch_tokens=100, attention_share=share, layout="padded")
    assert packed.cost(lengths) == pytest.approx(float(sample_costs(lengths, share).sum())) == pytest.approx(40 + 0.01 * 1000)
    assert padded.cost(lengths) == pytest.approx(2 * (30 + 0.01 * 900))
