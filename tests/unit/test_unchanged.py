"""What `--resume` holds a run's files against."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ftcore.spec.errors import CheckpointError
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir
from launcher.ds_config import render_ds_config
from launcher.unchanged import differing_keys, load_unchanged, record_path, record_text, require_ds_config
from tests.unit.local_launch import resolved_for


@pytest.fixture
def run(tmp_path: Path) -> tuple[RunDir, ResolvedSpec]:
    run_dir, resolved = RunDir(tmp_path), resolved_for()
    files = {run_dir.resolved: resolved.to_json(), run_dir.ds_config: render_ds_config(resolved)}
    for path, text in {**files, record_path(run_dir): record_text(files)}.items():
        path.write_text(text)
    return run_dir, resolved


def test_a_run_as_it_was_started(run: tuple[RunDir, ResolvedSpec]) -> None:
    run_dir, resolved = run
    assert load_unchanged(run_dir) == resolved
    require_ds_config(run_dir, resolved)


def test_a_missing_ds_config_is_written_anew(run: tuple[RunDir, ResolvedSpec]) -> None:
    run_dir, resolved = run
    run_dir.ds_config.unlink()
    require_ds_config(run_dir, resolved)
    assert run_dir.ds_config.read_text() == render_ds_config(resolved)


def test_a_changed_resolved_spec_is_refused(run: tuple[RunDir, ResolvedSpec]) -> None:
    run_dir, _ = run
    run_dir.resolved.write_text(run_dir.resolved.read_text().replace('"stage": 2', '"stage": 1'))
    with pytest.raises(CheckpointError, match=r"it was changed since the run was started(\n|.)*put the file back"):
        load_unchanged(run_dir)
    # Without the record there is nothing to hold it against.
    record_path(run_dir).unlink()
    assert load_unchanged(run_dir).spec.zero.stage == 1


def test_a_changed_ds_config_is_refused_with_its_keys(run: tuple[RunDir, ResolvedSpec]) -> None:
    run_dir, resolved = run
    config = json.loads(run_dir.ds_config.read_text())
    run_dir.ds_config.write_text(json.dumps(config))
    require_ds_config(run_dir, resolved)
    config["optimizer"]["params"]["lr"] = 1
    del config["bf16"]
    run_dir.ds_config.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"started with: bf16, optimizer\.params\.lr\n"):
        require_ds_config(run_dir, resolved)
    run_dir.ds_config.write_text(json.dumps({str(number): 1 for number in range(20)}))
    with pytest.raises(CheckpointError, match=r"0, 1, 10.* and \d+ more"):
        require_ds_config(run_dir, resolved)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\udcff"])
def test_a_damaged_ds_config_is_refused(run: tuple[RunDir, ResolvedSpec], text: str) -> None:
    run_dir, resolved = run
    run_dir.ds_config.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError, match="it is damaged"):
        require_ds_config(run_dir, resolved)


def test_a_ds_config_of_another_version_stays_right(run: tuple[RunDir, ResolvedSpec]) -> None:
    run_dir, resolved = run
    run_dir.ds_config.write_text("{}")
    record_path(run_dir).write_text(record_text({run_dir.resolved: resolved.to_json(), run_dir.ds_config: "{}"}))
    require_ds_config(run_dir, resolved)


def test_a_file_that_can_not_be_read(run: tuple[RunDir, ResolvedSpec]) -> None:
    run_dir, resolved = run
    run_dir.ds_config.unlink()
    run_dir.ds_config.mkdir()
    with pytest.raises(CheckpointError, match="Is a directory"):
        require_ds_config(run_dir, resolved)


def test_differing_keys() -> None:
    assert differing_keys({"a": {"b": 1, "c": [1]}}, {"a": {"b": 1, "c": [2]}, "d": None}) == ["a.c", "d"]
    assert differing_keys(True, 1) == ["the whole file"] and differing_keys({"a": 1}, {"a": {}}) == ["a"]


def test_what_lies_in_the_place_of_files_that_ranks_write(run: tuple[RunDir, ResolvedSpec]) -> None:
    """A rank that opens a pipe waits for ever."""
    run_dir, _ = run
    os.mkfifo(run_dir.events)
    run_dir.rank_metrics(0).mkdir(parents=True)
    with pytest.raises(CheckpointError) as caught:
        load_unchanged(run_dir)
    assert [problem.where.rpartition("/")[2] for problem in caught.value.problems] == ["events.jsonl", "rank_0.jsonl"]
