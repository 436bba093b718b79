"""The ledger against tensor storages tracked on real ranks; benchmarks/memory.py has more configurations."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.memory import AIMS, compare
from benchmarks.memory_cases import CASES, MODELS, save_model
from benchmarks.memory_ranks import measure_cases
from tests.ranks.pool import RankPool

SMALL = {"num_hidden_layers": 2, "vocab_size": 2048}


def test_peaks_and_activations_are_as_the_ledger_says(pool: RankPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """J01, J07: stage 1 whole, stage 1 with adapters, stage 3 sharded; in one process group of two ranks."""
    monkeypatch.setitem(MODELS, "smollm2", {**MODELS["smollm2"], **SMALL})
    save_model("smollm2", tmp_path)
    wanted = [replace(case, segments=(128, 128)) for case in CASES if case.name in ("full-bf16-1", "lora-bf16-1", "full-bf16-3")]
    ranks = pool.run(measure_cases, 2, str(tmp_path), wanted, logs=tmp_path / "logs")
    for case, *measured in zip(wanted, *ranks, strict=True):
        found = compare(case, tmp_path, [{**asdict(each), "peak": each.peak} for each in measured])
        assert abs(found.error("activations")) < AIMS["activations"], found
        assert abs(found.error("peak")) < AIMS["worst"], found
        assert found.logits[0] == found.logits[1]
        assert found.items["weights"][0] == pytest.approx(found.items["weights"][1], rel=0.01)
        assert found.items["optimizer"][0] == pytest.approx(found.items["optimizer"][1], rel=0.01)
