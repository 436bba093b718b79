"""A checkpoint is whole or it is passed over with the reason; nothing good is ever lost (F01, F02, F04, F07)."""

from __future__ import annotations

import dataclasses
import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ftcore import dist
from ftcore.batch.cursor import Cursor
from ftcore.batch.data_identity import DataIdentity
from ftcore.checkpoint.digest import digest_of
from ftcore.checkpoint.find import find_newest_whole
from ftcore.checkpoint.layout import newest_first
from ftcore.checkpoint.load import find_over_ranks, load_checkpoint
from ftcore.checkpoint.manifest import MANIFEST_VERSION, SELF_DIGEST, read_manifest
from ftcore.checkpoint.read import StateReader
from ftcore.checkpoint.retention import set_aside
from ftcore.checkpoint.rng import load_rng
from ftcore.checkpoint.saver import Saver
from ftcore.data.prepared import ModelSource
from ftcore.run import build_engine
from ftcore.spec.errors import CheckpointError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from tests.ranks.jobs import make_job, train_runs
from tests.ranks.pool import RankPool
from tests.ranks.saver_jobs import saver_at
from tests.ranks.specs import make_spec, with_section

Small = tuple[ModelSource, str]
SPEC = make_spec(2, updates=6, save_steps=2)


@pytest.fixture(scope="module")
def trained(pool: RankPool, small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints after 2, 4 and 6 updates, written by two ranks."""
    run = tmp_path_factory.mktemp("faults") / "run"
    pool.run(train_runs, 2, [(str(run), SPEC)], *small, logs=run / "logs")
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def nest_deeply(path: Path) -> None:
    path.write_text("[" * 100_000)


@pytest.mark.parametrize(
    ("damage", "file", "reason"),
    [
        (cut_in_half, "rank_1/state.safetensors", "the manifest says"),
        (flip_a_bit, "rank_0/state.safetensors", "its digest differs"),
        (flip_a_bit, "cursor.json", "its digest differs"),
        (Path.unlink, "rank_1/index.json", "No such file"),
        (Path.unlink, "manifest.json", "the save did not finish"),
        (cut_in_half, "manifest.json", "the manifest is damaged"),
        (nest_deeply, "manifest.json", "the manifest is damaged"),
    ],
)
def test_falls_back_and_says_why(damage: Callable[[Path], None], file: str, reason: str, run: Path) -> None:
    damage(run / "checkpoints" / "update_00000006" / file)
    search = find_newest_whole(run / "checkpoints")
    assert search.found is not None and search.found.path.name == "update_00000004"
    assert len(search.skipped) == 1 and search.skipped[0].startswith("update_00000006: ") and reason in search.skipped[0]


@pytest.mark.parametrize("content", [None, "update_00000099\n", "\0\0"])
def test_latest_is_only_a_convenience(content: str | None, run: Path) -> None:
    latest = run / "checkpoints" / "latest"
    assert latest.read_text() == "update_00000006\n"
    latest.unlink() if content is None else latest.write_text(content)
    search = find_newest_whole(run / "checkpoints")
    assert search.found is not None and search.found.manifest.update == 6 and not search.skipped


def test_a_broken_save_is_named(run: Path) -> None:
    (run / "checkpoints" / "update_00000008.partial").mkdir()
    assert find_newest_whole(run / "checkpoints").skipped == ("update_00000008.partial: the save did not finish",)


def test_another_manifest_version_is_refused(run: Path) -> None:
    path = run / "checkpoints" / "update_00000006"
    manifest = json.loads((path / "manifest.json").read_text()) | {"version": 99}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="manifest version 99"):
        read_manifest(path)


def test_nothing_whole(tmp_path: Path) -> None:
    assert find_newest_whole(tmp_path / "none").found is None


def names(checkpoints: Path) -> set[str]:
    return {path.name for path in checkpoints.iterdir()}


@pytest.mark.parametrize(("key", "value"), [("world_size", 3), ("files", []), ("parameters", []), ("base", {"name": "", "revision": "", "digest": "0"})])
def test_an_edited_manifest_is_passed_over(key: str, value: object, run: Path) -> None:
    path = run / "checkpoints" / "update_00000006" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    search = find_newest_whole(run / "checkpoints")
    assert search.found is not None and search.found.path.name == "update_00000004"
    assert "its own digest differs" in search.skipped[0]


def test_training_again_over_damaged_checkpoints_keeps_the_good_ones(run: Path, small: Small, pool: RankPool, tmp_path: Path) -> None:
    """6 is damaged: the resume goes on from 4, saves 6 again, and sets the damaged one aside."""
    cut_in_half(run / "checkpoints" / "update_00000006" / "cursor.json")
    pool.run(train_runs, 2, [(str(run), with_section(SPEC, "checkpoint", save_total_limit=1))], *small, logs=tmp_path / "logs")
    search = find_newest_whole(run / "checkpoints")
    assert search.found is not None and search.found.manifest.update == 6 and not search.skipped
    assert (run / "checkpoints" / "update_00000006.broken").is_dir()


def test_a_stray_folder_never_costs_the_training(run: Path, small: Small, pool: RankPool, tmp_path: Path) -> None:
    """Limit 1, a folder with a higher number and no manifest, and 4 and 6 damaged: what the resumed run saves stays."""
    checkpoints = run / "checkpoints"
    (checkpoints / "update_00000099").mkdir()
    for name in ("update_00000004", "update_00000006"):
        flip_a_bit(checkpoints / name / "rank_0/state.safetensors")
    pool.run(train_runs, 2, [(str(run), with_section(SPEC, "checkpoint", save_total_limit=1))], *small, logs=tmp_path / "logs")
    assert names(checkpoints) == {"update_00000006", "latest", *(f"update_{number:08d}.broken" for number in (4, 6, 99))}
    search = find_newest_whole(checkpoints)
    assert search.found is not None and search.found.manifest.update == 6 and not search.skipped


@pytest.mark.parametrize("aside", [False, True])
def test_nothing_whole_is_no_fresh_start(aside: bool, run: Path, small: Small, pool: RankPool, tmp_path: Path) -> None:
    for path in newest_first(run / "checkpoints"):
        flip_a_bit(path / "cursor.json")
        if aside:
            set_aside(path)
    reason = r"update_00000006\.broken: set aside" if aside else r"update_00000006: cursor\.json has changed"
    with pytest.raises(AssertionError, match=rf"no checkpoint is whole: (\n|.)*{reason}(\n|.)* move .*/run/checkpoints away to start again from update 0"):
        pool.run(train_runs, 2, [(str(run), SPEC)], *small, logs=tmp_path / "logs")
    assert len(newest_first(run / "checkpoints")) == (0 if aside else 3)


def test_a_run_killed_before_its_first_save_begins_anew(run: Path, small: Small, pool: RankPool, tmp_path: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints" / "update_00000002.partial").mkdir(parents=True)
    pool.run(train_runs, 2, [(str(run), SPEC)], *small, logs=tmp_path / "logs")
    assert names(run / "checkpoints") == {"update_00000002", "update_00000004", "update_00000006", "latest"}
    assert "stopped before its first checkpoint was whole: starting from update 0" in (run / "events.jsonl").read_text()


def save_without_room(rank: int, world_size: int, folder: str, source: ModelSource, samples: str) -> str:
    """Rank 1's files may have 1000 bytes, as on a disk that is nearly full."""
    ranks = dist.start()
    run_dir = RunDir(Path(folder))
    engine = build_engine(make_job(run_dir, SPEC, source, samples), ranks)
    found = find_over_ranks(run_dir.checkpoints, ranks).found
    assert found is not None
    cursor = dataclasses.replace(load_checkpoint(engine, found, spec=SPEC, base=source), next_update=8)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        list(Saver(engine, run_dir.checkpoints, spec=SPEC, base=source).finish(cursor, pauses_s=(0.1,)))
    except CheckpointError as error:
        return f"{error.exit_status} {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return ""


def test_a_rank_without_room_stops_all_with_the_reason(run: Path, small: Small, pool: RankPool, tmp_path: Path) -> None:
    for outcome in pool.run(save_without_room, 2, str(run), *small, logs=tmp_path / "logs"):
        assert outcome.startswith("5 ") and "rank 1 could not save: [Errno 27] File too large" in outcome
    search = find_newest_whole(run / "checkpoints")
    assert search.found is not None and search.found.manifest.update == 6


def test_a_gap_in_the_slices_is_an_error(run: Path) -> None:
    path = run / "checkpoints" / "update_00000006"
    index = json.loads((path / "rank_1" / "index.json").read_text())
    name = next(iter(index["slices"]))
    del index["slices"][name]
    (path / "rank_1" / "index.json").write_text(json.dumps(index))
    reader = StateReader.open(path, read_manifest(path))
    with pytest.raises(CheckpointError, match=f"{name} has no elements from"):
        reader.parameter(name)


def test_an_unreadable_index_is_an_error(run: Path) -> None:
    path = run / "checkpoints" / "update_00000006"
    (path / "rank_0" / "index.json").write_text("{")
    with pytest.raises(CheckpointError, match="rank 0's state can't be read"):
        StateReader.open(path, read_manifest(path))


def test_random_state_failure_is_loud(tmp_path: Path) -> None:
    (tmp_path / "rng.json").write_text('{"python": [3]}')
    with pytest.raises(CheckpointError, match="random state can't be restored"):
        load_rng(tmp_path / "rng.json")


def test_cursor_belongs_to_its_data() -> None:
    cursor = Cursor(order_seed=1, data_fingerprint="a" * 64)
    cursor.require_same(DataIdentity(fingerprint="a" * 64), 1)
    with pytest.raises(CheckpointError, match=r"training data changed .*\(fingerprint aaaaaaaaaaaa then, bbbbbbbbbbbb now\)"):
        cursor.require_same(DataIdentity(fingerprint="b" * 64), 1)
    with pytest.raises(CheckpointError, match=r"train.seed is 2, the checkpoint was written with 1"):
        cursor.require_same(DataIdentity(fingerprint="a" * 64), 2)
    with pytest.raises(CheckpointError, match="not a cursor"):
        Cursor.from_json("[]")


def load_as(rank: int, world_size: int, folder: str, spec: Spec, source: ModelSource, samples: str) -> str:
    ranks = dist.start()
    engine = build_engine(make_job(RunDir(Path(folder)), spec, source, samples), ranks)
    found = find_over_ranks(Path(folder) / "checkpoints", ranks).found
    assert found is not None
    try:
        load_checkpoint(engine, found, spec=spec, base=source)
    except CheckpointError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("spec", "change", "message"),
    [
        (SPEC, {"digest": "other"}, "the checkpoint belongs to base model"),
        (make_spec(2, method="lora"), {}, "trained parameters differ from the checkpoint's"),
        (with_section(SPEC, "optimizer", type="sgd"), {}, "the checkpoint holds adamw state, the spec says sgd"),
    ],
)
def test_another_runs_checkpoint_is_refused(spec: Spec, change: dict[str, str], message: str, run: Path, small: Small, pool: RankPool, tmp_path: Path) -> None:
    source = dataclasses.replace(small[0], **change)
    for outcome in pool.run(load_as, 2, str(run), spec, source, small[1], logs=tmp_path / "logs"):
        assert message in outcome


def save_in_the_way(rank: int, world_size: int, folder: str, source: ModelSource, samples: str) -> list[str]:
    """The last save of a run while a file stands where its folder belongs; the file goes when the first try has failed."""
    saver, at = saver_at(dist.start(), folder, SPEC, source, samples)
    partial = Path(folder) / "checkpoints" / "update_00000008.partial"
    if rank == 0:
        partial.write_text("in the way")
    told = []
    for outcome in saver.finish(at(8)):
        told.append(f"{outcome.rank} {outcome.reason}" if outcome.path is None else outcome.path.name)
        if rank == 0 and outcome.path is None:
            partial.unlink()
    return told


def test_the_last_save_is_tried_again(run: Path, small: Small, pool: RankPool, tmp_path: Path) -> None:
    """All ranks hear of the failure with its reason; nothing is said to be saved before it is."""
    for told in pool.run(save_in_the_way, 2, str(run), *small, logs=tmp_path / "logs"):
        assert told[0].startswith("0 [Errno 20] Not a directory") and told[1:] == ["update_00000008"]
    search = find_newest_whole(run / "checkpoints")
    assert search.found is not None and search.found.manifest.update == 8 and not search.skipped


def test_a_manifest_of_another_version_is_refused(run: Path) -> None:
    path = run / "checkpoints" / "update_00000006" / "manifest.json"
    content = json.loads(path.read_text())
    del content[SELF_DIGEST]
    content["version"] = MANIFEST_VERSION + 1
    path.write_text(json.dumps({**content, SELF_DIGEST: digest_of(json.dumps(content, sort_keys=True).encode())}))
    with pytest.raises(CheckpointError, match=f"manifest version {MANIFEST_VERSION + 1}, this ftlaunch reads {MANIFEST_VERSION}"):
        read_manifest(path.parent)
