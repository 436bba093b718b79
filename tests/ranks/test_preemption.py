"""Ranks that are asked to stop, at every moment: one save, the same update on all, and a run that goes on as if nothing had been. H03, H04, I05."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcore.checkpoint.find import find_newest_whole
from ftcore.checkpoint.layout import newest_first
from ftcore.data.prepared import ModelSource
from ftcore.spec.errors import PREEMPTED
from ftcore.spec.sections import Spec
from tests.ranks.jobs import read_lines
from tests.ranks.pool import RankPool
from tests.ranks.preemption_jobs import Ended, Moment, stop_and_resume
from tests.ranks.specs import make_spec, with_section

Small = tuple[ModelSource, str]
UPDATES, EVAL_STEPS, SAVE_STEPS = 6, 2, 4
WHOLE = Moment("")
SETTLE_S = 0.2
"""Ten times what a rank's thread takes to hear of it in these tests."""


def moments(last: int) -> list[Moment]:
    """Every part of an update, on the first or the last rank, with each signal; then several ranks and signals at once."""
    return [
        Moment("load", 0, (last,)),
        Moment("data", 2, (0,), (signal.SIGUSR1,)),
        Moment("forward", 1, (last,)),
        Moment("backward", 2, (last,), (signal.SIGTERM,)),
        Moment("step", 3, (0,)),
        Moment("evaluate", 2, (last,), settle_s=SETTLE_S),
        Moment("save", SAVE_STEPS, (last,), settle_s=SETTLE_S),
        Moment("forward", 3, tuple(range(last + 1)), (signal.SIGUSR2, signal.SIGTERM, signal.SIGUSR2)),
    ]


def make(stage: int, *, save_async: bool = True) -> Spec:
    spec = with_section(make_spec(stage, updates=UPDATES, save_steps=SAVE_STEPS), "evaluation", eval_steps=EVAL_STEPS)
    return with_section(spec, "checkpoint", metric_for_best_model="loss", save_async=save_async)


def events(run: Path, name: str) -> list[dict[str, Any]]:
    return [line for line in read_lines(run / "events.jsonl") if line["event"] == name]


def require_same_end(whole: Path, run: Path, end: Ended, resumed: Ended) -> None:
    """The resumed run is bit by bit the unbroken one, and its files tell of everything once."""
    assert resumed.status == 0 and resumed.update == UPDATES
    assert end.state.keys() == resumed.state.keys() and all(torch.equal(end.state[name], resumed.state[name]) for name in end.state)
    lines = [[(line["update"], line["loss"], line["grad_norm"]) for line in read_lines(each / "metrics.jsonl")] for each in (whole, run)]
    assert lines[0] == lines[1]
    evaluations = [[(line["update"], line["set"], line["loss"]) for line in events(each, "evaluation")] for each in (whole, run)]
    assert evaluations[0] == evaluations[1]
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
        # Other ranks hear of it within an update or a few: these take milliseconds.
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
