"""resolved.json that is damaged: always a CheckpointError, whatever the damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftcore.spec.errors import CheckpointError
from ftcore.spec.resolved import ResolvedSpec, load_resolved
from tests.unit.local_launch import resolved_for


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("hosts", []),
        ("hosts", "ab"),
        ("hosts", [{"name": "a", "slots": 0}]),
        ("hosts", [5]),
        ("spec.train.max_steps", "abc"),
        ("spec.train.seed", True),
        ("spec.train.gradient_checkpointing", 1),
        ("spec.train.precision", None),
        ("spec.zero.stage", "two"),
        ("spec.zero.stage", 2.0),
        ("spec.zero.overrides", []),
        ("spec.optimizer.learning_rate", "1e-4"),
        ("spec.optimizer.learning_rate", True),
        ("spec.optimizer.learning_rate", 10**400),
        ("spec.method.target_modules", "q_proj"),
        ("spec.data.train.columns", {"messages": 1}),
        ("spec.unheard", 1),
        ("cache_dir", 1),
        ("version", 99),
    ],
)
def test_wrong_values(tmp_path: Path, path: str, value: Any) -> None:
    data = json.loads(resolved_for().to_json())
    *above, last = path.split(".")
    home = data
    for part in above:
        home = home[part]
    home[last] = value
    (tmp_path / "resolved.json").write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match="not a resolved spec"):
        load_resolved(tmp_path / "resolved.json")


@pytest.mark.parametrize(
    ("raw", "told"),
    [(b'{"a": "\xff"}', "it is not UTF-8 text"), (b"[" * 100_000, "not a resolved spec"), (b"5", "it is no JSON object"), (b"", "not a resolved")],
)
def test_damaged_text(tmp_path: Path, raw: bytes, told: str) -> None:
    (tmp_path / "resolved.json").write_bytes(raw)
    with pytest.raises(CheckpointError, match=told):
        load_resolved(tmp_path / "resolved.json")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        load_resolved(tmp_path / "resolved.json")


def test_a_run_from_before_the_keys_of_several_hosts_is_read() -> None:
    resolved = resolved_for()
    data = json.loads(resolved.to_json())
    data["spec"]["cluster"] = {key: data["spec"]["cluster"][key] for key in ("hosts", "slots")}
    data["hosts"] = [{key: host[key] for key in ("name", "slots", "user", "slot_ids")} for host in data["hosts"]]
    assert ResolvedSpec.from_json(json.dumps(data)) == resolved
