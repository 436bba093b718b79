"""What the diagnostics leave in a run's folder: layer norms, findings, and the rank hint of adapters."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ftcore.data.prepared import ModelSource
from ftcore.spec.sections import OptimizerSection, Spec
from tests.ranks.insight_jobs import hint_runs
from tests.ranks.jobs import read_lines, train_runs
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section

Small = tuple[ModelSource, str]
LAYERS = ["model.layers.0", "model.layers.1"]


def with_norms(spec: Spec) -> Spec:
    return with_section(spec, "logging", layer_grad_norm_steps=2)


def test_layer_norms_are_in_the_metrics(pool: RankPool, small: Small, tmp_path: Path) -> None:
    methods = {"full": ["model.embed_tokens", *LAYERS, "model.norm"], "lora": [f"{layer}/default" for layer in LAYERS]}
    specs = {f"{method}_{stage}": with_norms(make_spec(stage, method=method, updates=5)) for method in methods for stage in (0, 2, 3)}
    pool.run(train_runs, 2, [(str(tmp_path / name), spec) for name, spec in specs.items()], *small, logs=tmp_path / "logs")
    for name in specs:
        lines = read_lines(tmp_path / name / "metrics.jsonl")
        assert [line["update"] for line in lines if "layer_grad_norms" in line] == [2, 4], name
        for line in lines[1::2]:
            norms = line["layer_grad_norms"]
            assert list(norms) == methods[name.partition("_")[0]], name
            assert math.hypot(*norms.values()) == pytest.approx(line["grad_norm"], rel=1e-4), name


def test_a_diverging_run_tells_a_finding(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """The learning rate rises from update to update, to hundreds of what the model can take."""
    spec = make_spec(0, optimizer=OptimizerSection(type="adamw", learning_rate=1.0, weight_decay=0.0, max_grad_norm=0.0), updates=70)
    spec = with_section(spec, "schedule", warmup_steps=69)
    pool.run(train_runs, 1, [(str(tmp_path / "run"), spec)], *small, logs=tmp_path / "logs")
    findings = [line for line in read_lines(tmp_path / "run" / "events.jsonl") if line["event"] == "finding"]
    assert findings
    assert findings[0]["kind"] in ("divergence", "spike")
    assert [cause["name"] for cause in findings[0]["causes"]] == ["clipping", "learning_rate", "loss_scale", "samples"]
    assert "max_grad_norm is 0, which never clips" in findings[0]["causes"][0]["what"]
    named = findings[0]["causes"][3]["what"].rpartition(": ")[2].split(", ")
    window = read_lines(tmp_path / "run" / "metrics" / "rank_0.jsonl")[findings[0]["update"] - 1]["samples"]
    assert set(map(int, named)) <= {sample for part in window for sample in part}


def test_rank_hints(pool: RankPool, small: Small, tmp_path: Path) -> None:
    specs = {f"stage_{stage}": make_spec(stage, method="lora", updates=3) for stage in range(4)}
    results = pool.run(hint_runs, 2, str(tmp_path), specs, *small, logs=tmp_path / "logs")
    for name in specs:
        hints = results[0][name]
        record = json.loads((tmp_path / name / "diagnostics" / "adapter_rank.json").read_text())
        assert record.keys() == {"default"}
        assert record["default"]["summary"] == hints.wanted["default"]["summary"]
        assert record["default"]["modules"].keys() == hints.wanted["default"]["modules"].keys()
        for module, wanted in hints.wanted["default"]["modules"].items():
            assert record["default"]["modules"][module] == pytest.approx(wanted, rel=1e-6), (name, module)
        assert hints.lines == [f"adapter default, {record['default']['summary']}"]
        assert hints.blocked[0].startswith("no rank hint: [Errno"), name
        assert hints.spoilt == ["no rank hint: the adapter holds a value that is not finite"], name
        notes = [line["text"] for line in read_lines(tmp_path / name / "events.jsonl") if line["event"] == "note"]
        assert notes == [*hints.lines, *hints.lines, *hints.spoilt], name
        for others in results[1:]:
            assert (others[name].lines, others[name].blocked, others[name].spoilt) == ([], [], [])


def test_a_run_without_adapters_has_no_hint(pool: RankPool, small: Small, tmp_path: Path) -> None:
    spec = make_spec(0, updates=1)
    pool.run(train_runs, 1, [(str(tmp_path / "run"), spec)], *small, logs=tmp_path / "logs")
    assert not (tmp_path / "run" / "diagnostics").exists()
