"""Ranks that are asked to stop, at every moment: one save, the same update on all, and a run that goes on as if nothing had been. H03, H04, I05."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcore.checkpoint.find import find_newest_whole
from ftcore.checkpoint.layout import checkpoint_path, newest_first
from ftcore.checkpoint.manifest import read_manifest
from ftcore.data.prepared import ModelSource
from ftcore.spec.errors import PREEMPTED
from ftcore.spec.sections import Spec
from tests.ranks.jobs import read_lines
from tests.ranks.pool import RankPool
from tests.ranks.preemption_jobs import Ended, Moment, stop_and_resume, train_legs
from tests.ranks.specs import make_spec, with_section

Small = tuple[ModelSource, str]
UPDATES, EVAL_STEPS, SAVE_STEPS = 6, 2, 4
WHOLE = Moment("")


def moments(last: int) -> list[Moment]:
    """Every part of an update, on the first or the last rank, with each signal; then several ranks and signals at once."""
    return [
        Moment("load", 0, (last,)),
        Moment("data", 2, (0,), (signal.SIGUSR1,)),
        Moment("forward", 1, (last,)),
        Moment("backward", 2, (last,), (signal.SIGTERM,)),
        Moment("step", 3, (0,)),
        Moment("evaluate", 2, (last,), settles=True),
        Moment("save", SAVE_STEPS, (last,), settles=True),
        Moment("forward", 3, tuple(range(last + 1)), (signal.SIGUSR2, signal.SIGTERM, signal.SIGUSR2)),
    ]


def make(stage: int, *, save_async: bool = True) -> Spec:
    spec = with_section(make_spec(stage, updates=UPDATES, save_steps=SAVE_STEPS), "evaluation", eval_steps=EVAL_STEPS)
    return with_section(spec, "checkpoint", metric_for_best_model="loss", save_async=save_async)


def events(run: Path, name: str) -> list[dict[str, Any]]:
    return [line for line in read_lines(run / "events.jsonl") if line["event"] == name]


def require_same_end(whole: Path, run: Path, end: Ended, resumed: Ended, *, redone: bool = False) -> None:
    """The resumed run is bit by bit the unbroken one, and its files tell of everything once; with `redone`, some evaluations twice."""
    assert resumed.status == 0 and resumed.update == UPDATES
    assert end.state.keys() == resumed.state.keys() and all(torch.equal(end.state[name], resumed.state[name]) for name in end.state)
    lines = [[(line["update"], line["loss"], line["grad_norm"]) for line in read_lines(each / "metrics.jsonl")] for each in (whole, run)]
    assert lines[0] == lines[1]
    evaluations = [[(line["update"], line["set"], line["loss"]) for line in events(each, "evaluation")] for each in (whole, run)]
    assert evaluations[0] == (list(dict.fromkeys(evaluations[1])) if redone else evaluations[1])
    assert (whole / "checkpoints/best").read_text() == (run / "checkpoints/best").read_text()


@pytest.mark.parametrize(("stage", "world_size"), [(0, 3), (1, 2), (2, 3), (3, 2)])
def test_a_signal_at_any_moment_stops_all_ranks_after_one_save(stage: int, world_size: int, pool: RankPool, small: Small, tmp_path: Path) -> None:
    chosen = moments(world_size - 1)
    ranks = pool.run(stop_and_resume, world_size, str(tmp_path), make(stage, save_async=stage != 2), [WHOLE, *chosen], *small, logs=tmp_path / "logs")
    whole = tmp_path / WHOLE.folder
    for moment in chosen:
        run, seen = tmp_path / moment.folder, [rank[moment.folder][0] for rank in ranks]
        assert {end.status for end in seen} == {PREEMPTED} and len({end.update for end in seen}) == 1, moment
        update = seen[0].update
        # Other ranks hear of it within an update or a few.
        assert moment.update <= update < UPDATES, moment
        path = f"update_{update:08d}" if update else ""
        assert [(line["update"], line["path"]) for line in events(run, "preempted")] == [(update, path)]
        saved = [line["update"] for line in events(run, "checkpoint")]
        assert len(saved) == len(set(saved)) and (update in saved) == (update > 0), moment
        require_same_end(whole, run, ranks[0][WHOLE.folder][0], ranks[0][moment.folder][1])
    cut = tmp_path / chosen[5].folder
    told = [(line["event"], line["update"]) for line in read_lines(cut / "events.jsonl") if line["event"] in ("evaluation", "preempted")]
    assert told[:3] == [("evaluation", 0), ("preempted", EVAL_STEPS), ("evaluation", EVAL_STEPS)]
    assert find_newest_whole(cut / "checkpoints").found is not None and not list((cut / "checkpoints").glob("*.partial"))
    assert newest_first(cut / "checkpoints")[0].name == f"update_{UPDATES:08d}"


Runs = dict[str, list[list[Ended]]]
"""By run: the launches of each rank."""
LEGS = {
    "whole": [WHOLE],
    "nothing_new": [Moment("step", 2), Moment("load", 0, (1,), settles=True), WHOLE],
    "cut_twice": [Moment("evaluate", 2, settles=True), Moment("evaluate", 2, (1,), settles=True), WHOLE],
    "first_evaluation": [Moment("evaluate", 0, (1,), settles=True), WHOLE],
    "last_update": [Moment("step", UPDATES - 1, (1,), settles=True)],
    "last_evaluation": [Moment("evaluate", UPDATES, settles=True)],
    "killed_in_last_evaluation": [Moment("evaluate", UPDATES, settles=True, fails_once_saved=True), WHOLE],
    "full_disk": [Moment("step", 2, settles=True), Moment("forward", 3, settles=True, full_disk_from=3), WHOLE],
    "full_disk_at_first": [Moment("forward", 1, settles=True, full_disk_from=0), WHOLE],
}


@pytest.fixture(scope="module")
def legs(pool: RankPool, small: Small, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Runs]:
    """The folder of the runs, and how each launch ended."""
    folder = tmp_path_factory.mktemp("legs")
    ranks = pool.run(train_legs, 2, str(folder), make(2), LEGS, *small, logs=folder / "logs")
    for name in LEGS:
        for one, other in zip(ranks[0][name], ranks[1][name], strict=True):
            assert (one.status, one.update, one.text) == (other.status, other.update, other.text), name
        # Whatever happened on the way, each run comes to the same end, and its files tell of everything once.
        require_same_end(folder / "whole", folder / name, ranks[0]["whole"][0], ranks[0][name][-1], redone=name.startswith("full_disk"))
    return folder, {name: [rank[name] for rank in ranks] for name in LEGS}


def statuses(legs: tuple[Path, Runs], name: str) -> list[int]:
    return [ended.status for ended in legs[1][name][0]]


def test_nothing_is_saved_twice(legs: tuple[Path, Runs]) -> None:
    """Asked again before it trained an update: the checkpoint that is there is the one."""
    assert statuses(legs, "nothing_new") == [PREEMPTED, PREEMPTED, 0]
    first, second = events(legs[0] / "nothing_new", "preempted")
    assert (first["update"], first["path"]) == (second["update"], second["path"])
    saved = [line["update"] for line in events(legs[0] / "nothing_new", "checkpoint")]
    assert saved.count(first["update"]) == 1


def test_an_evaluation_that_is_cut_twice_is_made_up_once(legs: tuple[Path, Runs]) -> None:
    assert statuses(legs, "cut_twice") == [PREEMPTED, PREEMPTED, 0]
    run = legs[0] / "cut_twice"
    assert [line["update"] for line in events(run, "preempted")] == [EVAL_STEPS, EVAL_STEPS]
    manifest = read_manifest(checkpoint_path(run / "checkpoints", EVAL_STEPS))
    assert not manifest.evaluation_due and manifest.metric == next(line["loss"] for line in events(run, "evaluation") if line["update"] == EVAL_STEPS)


def test_the_first_evaluation_needs_no_checkpoint(legs: tuple[Path, Runs]) -> None:
    assert statuses(legs, "first_evaluation") == [PREEMPTED, 0]
    assert [(line["update"], line["path"]) for line in events(legs[0] / "first_evaluation", "preempted")] == [(0, "")]


def test_a_run_that_has_done_its_last_update_ends_as_ever(legs: tuple[Path, Runs]) -> None:
    """What is trained is saved before the last evaluation goes on, so that a kill in it costs that alone."""
    for name in ("last_update", "last_evaluation"):
        assert statuses(legs, name) == [0] and not events(legs[0] / name, "preempted")
    assert statuses(legs, "killed_in_last_evaluation") == [1, 0]
    for name in ("last_evaluation", "killed_in_last_evaluation"):
        told = [(line["event"], line["update"]) for line in read_lines(legs[0] / name / "events.jsonl") if line["event"] in ("checkpoint", "evaluation")]
        assert told[-2:] == [("checkpoint", UPDATES), ("evaluation", UPDATES)]
        whole, run = (read_manifest(checkpoint_path(legs[0] / each / "checkpoints", UPDATES)) for each in ("whole", name))
        assert (run.metric, run.evaluation_due) == (whole.metric, False)


def test_a_save_that_fails_says_what_the_run_can_go_on_from(legs: tuple[Path, Runs]) -> None:
    assert statuses(legs, "full_disk") == [PREEMPTED, 5, 0]
    text = legs[1]["full_disk"][0][1].text
    resumed_from = events(legs[0] / "full_disk", "preempted")[0]["path"]
    assert "rank 1 could not save" in text and "No space left" in text and f"{resumed_from} is untouched" in text
    assert statuses(legs, "full_disk_at_first") == [5, 0]
    assert "there is no earlier checkpoint" in legs[1]["full_disk_at_first"][0][0].text
