"""A rank that is slow on purpose is named with its phase, and balanced ranks name nobody: fewer and shorter trials than those of benchmarks/slow_rank.py."""

from __future__ import annotations

from typing import Any

import pytest

from ftcore.data.cache import Counts, write_samples
from ftcore.data.prepared import ModelSource
from tests.ranks.phase_jobs import Planned, lines_of, phase_spec, train_planned
from tests.ranks.pool import RankPool

UPDATES = 16
SLEEP_S = 0.08
PLANTED = [("data_wait", 1), ("forward", 0), ("optimizer", 1), ("", 0)]
"""Place and rank; no place is a balanced run."""


@pytest.fixture(scope="module")
def even_samples(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Samples of one length: their deal is even."""
    path = tmp_path_factory.mktemp("even") / "samples.arrow"
    ids = [[3 + (index + place) % 20 for place in range(20)] for index in range(64)]
    counts = Counts(rows=64, tokens=64 * 20, supervised_tokens=64 * 10)
    import numpy as np

    write_samples(path, [np.array(each, dtype=np.int32) for each in ids], [[(10, 20)]] * 64, list(range(1, 65)), counts)
    return str(path)


@pytest.fixture(scope="module", params=[2, 4])
def found(
    request: pytest.FixtureRequest, pool: RankPool, small: tuple[ModelSource, str], even_samples: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """Place -> the run's slow_rank findings."""
    folder = tmp_path_factory.mktemp("slow")
    places = PLANTED if request.param == 2 else [each for each in PLANTED if each[0] in ("data_wait", "")]
    plans = [Planned(place or "balanced", phase_spec(2, UPDATES), place, rank, SLEEP_S) for place, rank in places]
    pool.run(train_planned, request.param, str(folder), plans, small[0], even_samples, logs=folder / "logs")
    events = {plan.place: lines_of(folder / plan.name, "events.jsonl") for plan in plans}
    return {place: [event for event in each if event["event"] == "finding" and event["kind"] == "slow_rank"] for place, each in events.items()}


def test_the_slow_rank_is_named_with_its_phase(found: dict[str, list[dict[str, Any]]]) -> None:
    for place, rank in PLANTED:
        if not place or place not in found:
            continue
        assert found[place], place
        assert {(event["rank"], event["phase"]) for event in found[place]} == {(rank, place)}
        assert {event["cause"] for event in found[place]} == {"data_wait" if place == "data_wait" else "device"}
        assert all(event["host"] and 0 < event["share"] <= 1 for event in found[place])


def test_balanced_ranks_name_nobody(found: dict[str, list[dict[str, Any]]]) -> None:
    assert not found[""]
