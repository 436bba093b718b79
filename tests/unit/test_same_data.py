"""E04: other data than a checkpoint was written with are refused by the preparation, before a rank starts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ftcore.batch.cursor import Cursor
from ftcore.batch.data_identity import DataIdentity
from ftcore.batch.mix import MixOrder
from ftcore.checkpoint.digest import digest_of
from ftcore.checkpoint.manifest import FileEntry, Manifest
from ftcore.data.mix import SampleMix
from ftcore.data.prepared import Prepared
from ftcore.prepare import prepare, require_same_data
from ftcore.spec.errors import CheckpointError
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from tests.unit.test_prepare import resolved, run

SEED = 42
FILES = ("buffers.safetensors", "rank_0/state.safetensors", "rank_0/index.json", "rank_0/rng.json")


def write_rows(path: Path, count: int) -> str:
    rows = [{"messages": [{"role": "user", "content": f"{row}?"}, {"role": "assistant", "content": f"{row}."}]} for row in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[ResolvedSpec, Prepared, DataIdentity]:
    folder = tmp_path_factory.mktemp("same_data")
    spec = resolved(folder / "cache", write_rows(folder / "rows.jsonl", 5), None)
    prepared = prepare(spec)
    mix = SampleMix.open({name: each.arrow for name, each in prepared.train.items()})
    return spec, prepared, DataIdentity.of_sets(mix, MixOrder.of(mix, spec.spec.data.training))


def write_checkpoint(run_dir: RunDir, update: int, cursor: str) -> Path:
    """A checkpoint without weights, whole as far as its manifest says."""
    checkpoint = run_dir.checkpoints / f"update_{update:08d}"
    (checkpoint / "rank_0").mkdir(parents=True)
    contents = {"cursor.json": cursor, **dict.fromkeys(FILES, "-")}
    for name, text in contents.items():
        (checkpoint / name).write_text(text)
    Manifest(
        update=update,
        world_size=1,
        zero_stage=2,
        precision="fp32",
        optimizer="adamw",
        base={"name": "m", "revision": "", "digest": "d"},
        parameters={"w": (2, 2)},
        versions={},
        files=tuple(FileEntry(path=name, bytes=len(text), digest=digest_of(text.encode())) for name, text in contents.items()),
    ).write(checkpoint)
    return checkpoint


def at(data: DataIdentity) -> str:
    return Cursor.at_start(data, SEED).to_json()


def other(data: DataIdentity) -> DataIdentity:
    return dataclasses.replace(data, fingerprint="f" * 64, sets={"train": "e" * 64})


def test_the_same_data_go_on(made: tuple[ResolvedSpec, Prepared, DataIdentity], tmp_path: Path) -> None:
    spec, prepared, data = made
    require_same_data(spec, prepared, RunDir(tmp_path))
    write_checkpoint(RunDir(tmp_path), 2, at(other(data)))
    write_checkpoint(RunDir(tmp_path), 4, at(data))
    require_same_data(spec, prepared, RunDir(tmp_path))


def test_other_data_are_refused_unless_allowed(made: tuple[ResolvedSpec, Prepared, DataIdentity], tmp_path: Path) -> None:
    spec, prepared, data = made
    run_dir = RunDir(tmp_path)
    write_checkpoint(run_dir, 4, at(other(data)))
    with pytest.raises(CheckpointError, match=r"the set train changed since the checkpoint was written \(fingerprint eeeeeeeeeeee then"):
        require_same_data(spec, prepared, run_dir)
    run_dir.events.write_text(json.dumps({"event": "launch_started", "attempt": 1, "data_change_allowed": 7.0}) + "\n")
    require_same_data(spec, prepared, run_dir)
    assert len(run_dir.events.read_text().splitlines()) == 1, "the change is made by the ranks, and written down by them"


def test_a_damaged_checkpoint_is_no_reason(made: tuple[ResolvedSpec, Prepared, DataIdentity], tmp_path: Path) -> None:
    """The ranks go on from the one before it."""
    spec, prepared, data = made
    write_checkpoint(RunDir(tmp_path), 2, at(data))
    newest = write_checkpoint(RunDir(tmp_path), 4, at(other(data)))
    (newest / FILES[1]).write_text("+")
    require_same_data(spec, prepared, RunDir(tmp_path))


def test_what_is_no_cursor_is_left_to_the_ranks(made: tuple[ResolvedSpec, Prepared, DataIdentity], tmp_path: Path) -> None:
    spec, prepared, _ = made
    write_checkpoint(RunDir(tmp_path), 4, "{}")
    require_same_data(spec, prepared, RunDir(tmp_path))


def test_the_process_ends_before_it_writes_anything(made: tuple[ResolvedSpec, Prepared, DataIdentity], tmp_path: Path) -> None:
    spec, _, data = made
    run_dir = RunDir(tmp_path)
    write_checkpoint(run_dir, 4, at(other(data)))
    status, events = run(tmp_path, spec)
    assert status == CheckpointError.exit_status
    [error] = [event for event in events if event["event"] == "error"]
    assert "--allow-data-change" in json.dumps(error)
    assert not run_dir.prepared.exists() and not run_dir.plan_json.exists()
    streaming = dataclasses.replace(spec.spec.data, streaming=True)
    streamed = dataclasses.replace(spec, spec=dataclasses.replace(spec.spec, data=streaming))
    with pytest.raises(CheckpointError, match="the set train changed"):
        require_same_data(streamed, prepare(streamed), run_dir)
