"""Streams on real ranks: the same updates on any number of them, before and after a resume; ends, mistakes, and changed data on all ranks alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftcore.data.prepared import ModelSource
from ftcore.spec.sections import Spec
from tests.ranks.jobs import TrainedRank, read_lines, train_runs
from tests.ranks.pool import RankPool
from tests.ranks.specs import with_section
from tests.ranks.stream_specs import LONG, ROWS, rows_of, stream_spec, write_stream
from tests.ranks.test_resume import assert_equal_state, copy_at, ids

Small = tuple[ModelSource, str]
UPDATES, SAVED = 12, 7
SHORT = [sum((row + 1) % LONG > 0 for row in range(count)) for count in ROWS.values()]
"""Rows of each file that aren't too long."""


def train(pool: RankPool, small: Small, folder: Path, specs: dict[str, Spec], world_size: int) -> dict[str, list[TrainedRank]]:
    """Run -> what each rank brings back; all runs in one process group."""
    ranks = pool.run(train_runs, world_size, [(str(folder / name), spec) for name, spec in specs.items()], *small, logs=folder / f"logs_{world_size}")
    return {name: [rank[index] for rank in ranks] for index, name in enumerate(specs)}


def lines_of(run: Path) -> list[dict[str, Any]]:
    return read_lines(run / "metrics.jsonl")


def ids_by_update(ranks: list[TrainedRank]) -> list[list[int]]:
    return [ids(ranks, update) for update in sorted(set().union(*(rank.samples for rank in ranks)))]


def test_the_same_updates_on_any_ranks_and_after_a_resume(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """E06, E07, E09: samples, counts and losses by update are those of one rank, and a resume goes on with them on as many ranks, bit by bit, or on others."""
    pattern = write_stream(tmp_path / "data")
    by_samples = stream_spec(pattern, updates=UPDATES, save_steps=SAVED)
    by_tokens = stream_spec(pattern, updates=UPDATES, save_steps=SAVED, batch={"global_batch_size": None, "tokens_per_update": 90}, overlong="split")
    fewer_lanes = stream_spec(pattern, updates=6, lanes=2, prefetch_updates=0)
    specs = {"samples": by_samples, "tokens": by_tokens}
    runs = {world_size: train(pool, small, tmp_path / str(world_size), specs, world_size) for world_size in (1, 2, 4)}
    for world_size in (2, 4):
        for name in specs:
            assert ids_by_update(runs[world_size][name]) == ids_by_update(runs[1][name])
            assert runs[world_size][name][0].losses == pytest.approx(runs[1][name][0].losses, rel=1e-5)
            assert len({tuple(rank.micro_steps) for rank in runs[world_size][name]}) == 1
            fields = ("epoch", "samples", "tokens", "supervised_tokens", "dropped_rows", "truncated")
            told = [[{field: line.get(field) for field in fields} for line in lines_of(tmp_path / str(each) / name)] for each in (1, world_size)]
            assert told[0] == told[1]
            # L05: every rank's own, with its filler rows, are what is told of the update.
            own = [read_lines(tmp_path / str(world_size) / name / "metrics" / f"rank_{rank}.jsonl") for rank in range(world_size)]
            lines = lines_of(tmp_path / str(world_size) / name)
            assert [line["computed_tokens"] for line in lines] == [sum(rank["computed_tokens"] for rank in ranks) for ranks in zip(*own, strict=True)]
    epoch = [sample for update in ids_by_update(runs[1]["samples"]) for sample in update][: sum(SHORT)]
    assert len(set(epoch)) == sum(SHORT)
    for name in specs:
        for world_size in (2, 3):
            copy_at(tmp_path / "2" / name, tmp_path / f"resumed_{world_size}" / name, SAVED)
    again = train(pool, small, tmp_path / "resumed_2", specs, 2)
    others = train(pool, small, tmp_path / "resumed_3", {**specs, "lanes": fewer_lanes}, 3)
    for name in specs:
        assert_equal_state(again[name][0], runs[2][name][0])
        assert again[name][0].losses == runs[2][name][0].losses
        assert [rank.samples for rank in again[name]] == [rank.samples for rank in runs[2][name]]
        assert others[name][0].losses == pytest.approx(runs[1][name][0].losses, rel=1e-5)
        late = list(range(SAVED + 1, UPDATES + 1))
        assert [ids(others[name], update) for update in late] == [ids(runs[1][name], update) for update in late]
    assert ids_by_update(others["lanes"]) and not any(part for parts in others["lanes"][2].samples.values() for part in parts)


def test_a_stream_that_does_not_repeat_ends_the_run(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """E10: on all ranks alike, with its last update short and a checkpoint; a resume finds nothing more to do."""
    spec = stream_spec(write_stream(tmp_path / "data"), updates=40, repeat=False)
    runs = train(pool, small, tmp_path, {"run": spec, "fewer lines": with_section(spec, "logging", logging_steps=20)}, 3)
    whole = runs["run"]
    lines = lines_of(tmp_path / "run")
    updates = -(-sum(SHORT) // 6)
    assert [line["samples"] for line in lines] == [6] * (updates - 1) + [sum(SHORT) - 6 * (updates - 1)]
    assert lines[-1]["epoch"] == 1 and sum(line.get("dropped_rows", {}).get("overlong", 0) for line in lines) == sum(ROWS.values()) - sum(SHORT)
    (end,) = (event for event in read_lines(tmp_path / "fewer lines" / "events.jsonl") if event["event"] == "data_end")
    told = [*lines_of(tmp_path / "fewer lines"), end]
    assert len(told) < 4 and sum(each.get("dropped_rows", {}).get("overlong", 0) for each in told) == sum(ROWS.values()) - sum(SHORT)
    assert sorted(sample for update in ids_by_update(whole) for sample in update) == sorted(set().union(*ids_by_update(whole)))
    cursor = json.loads((tmp_path / "run" / "checkpoints" / f"update_{updates:08d}" / "cursor.json").read_text())
    assert cursor["samples_seen"] == sum(SHORT) and len(cursor["stream"]["lanes"]) == 5
    again = train(pool, small, tmp_path, {"run": spec}, 2)["run"]
    assert again[0].losses == whole[0].losses and len(lines_of(tmp_path / "run")) == updates


def test_a_bad_row_stops_all_ranks_with_its_place(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """E01: or is dropped and counted, as data.on_bad_row says."""
    pattern = write_stream(tmp_path / "data")
    bad = tmp_path / "data" / "b.jsonl"
    rows = bad.read_text().splitlines()
    rows[4] = '{"input_ids": [5, 6], "labels": [5]}'
    bad.write_text("\n\n".join(rows))
    spec = stream_spec(pattern, updates=40, repeat=False, batch={"global_batch_size": 3}, lanes=2)
    with pytest.raises(AssertionError, match=r"(?s)StoppedStreamError.*b\.jsonl:9.*labels"):
        train(pool, small, tmp_path, {"run": spec}, 2)
    # What was trained before it is saved, and is gone on from without the row.
    done = len(lines_of(tmp_path / "run"))
    assert done and (tmp_path / "run" / "checkpoints" / f"update_{done:08d}").is_dir()
    dropped = stream_spec(pattern, updates=40, repeat=False, batch={"global_batch_size": 3}, lanes=2, on_bad_row="drop")
    train(pool, small, tmp_path, {"run": dropped}, 1)
    lines = lines_of(tmp_path / "run")
    assert sum(line.get("dropped_rows", {}).get("bad_row", 0) for line in lines) == 1
    assert sum(line["samples"] for line in lines) == sum(SHORT) - 1


def test_changed_data_are_refused(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """E04: one character of one file, and another buffer; a rule for bad rows is no change."""
    pattern = write_stream(tmp_path / "data")
    train(pool, small, tmp_path, {"run": stream_spec(pattern, updates=4, save_steps=2)}, 1)
    with pytest.raises(AssertionError, match=r"training data changed|the set train changed"):
        train(pool, small, tmp_path, {"run": stream_spec(pattern, updates=6, shuffle_buffer=5)}, 1)
    train(pool, small, tmp_path, {"run": stream_spec(pattern, updates=5, on_bad_row="drop")}, 1)
    file = tmp_path / "data" / "a.jsonl"
    rows = rows_of(ROWS["a.jsonl"], 0)
    rows[3]["input_ids"][1] += 1
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(AssertionError, match="the set train changed"):
        train(pool, small, tmp_path, {"run": stream_spec(pattern, updates=6)}, 1)
