"""Who hears of torch's collectives: one listener at a time, of each collective once, and torch is left as it was."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist

from ftcore import dist
from ftcore.collective_calls import ROOTED, SYNCHRONISING, ToldWork, forget, listen
from tests.ranks.pool import kept_port


class Heard:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.inside, self.world_size = False, 1
        self.told: list[tuple[Any, ...]] = []

    def mark(self) -> int:
        return len(self.told)

    def blocked(self, began: Any, *, of_all_ranks: bool, synchronises: bool) -> None:
        self.told.append(("blocked", of_all_ranks, synchronises))

    def launched(self, began: Any, *, of_all_ranks: bool) -> Any:
        self.told.append(("launched", of_all_ranks))
        return "launch"

    def waited(self, launch: Any, began: Any) -> None:
        self.told.append(("waited", launch))


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[dist.Ranks]:
    """A process group of this process alone."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with kept_port() as port:
        for name, value in {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, str(value))
        yield dist.start()
        dist.stop()


def test_each_collective_is_told_once(ranks: dist.Ranks) -> None:
    heard, value = Heard(), torch.ones(3)
    listen(heard)
    try:
        torch_dist.all_reduce(value)
        torch_dist.broadcast(value, 0)
        # Made of two others.
        dist.gather_objects("text", ranks)
        torch_dist.all_reduce(value, torch_dist.ReduceOp.SUM, torch_dist.group.WORLD)
        work = torch_dist.all_reduce(value, async_op=True)
        assert isinstance(work, ToldWork)
        work.wait(timeout=timedelta(seconds=60))
        assert work.is_completed()
    finally:
        forget(heard)
    all_of_them, rooted = ("blocked", True, True), ("blocked", True, False)
    assert heard.told == [all_of_them, rooted, all_of_them, all_of_them, ("launched", True), ("waited", "launch")]


def test_a_group_aside_is_not_told(ranks: dist.Ranks) -> None:
    group, heard = dist.HostGroup(ranks), Heard()
    listen(heard)
    try:
        assert group.gather(1) == [1]
    finally:
        forget(heard)
    assert not heard.told


def test_a_failure_leaves_nothing_open(ranks: dist.Ranks) -> None:
    heard = Heard()
    listen(heard)
    try:
        with pytest.raises(TypeError):
            torch_dist.all_reduce("no tensor")
    finally:
        forget(heard)
    assert not heard.inside
    assert not heard.told


def test_torch_is_left_as_it_was_whoever_listened_last(ranks: dist.Ranks) -> None:
    modules = (torch_dist, torch_dist.distributed_c10d)
    names = [name for name in (*SYNCHRONISING, *ROOTED) if hasattr(torch_dist.distributed_c10d, name)]
    before = [getattr(module, name) for module in modules for name in names if hasattr(module, name)]
    kept = SimpleNamespace(all_gather_function=torch_dist.all_gather_into_tensor, other=print)
    one, other = Heard(), Heard()
    listen(one, (kept,))
    assert kept.all_gather_function is not before[names.index("all_gather_into_tensor")]
    listen(other)
    torch_dist.barrier()
    forget(one)
    torch_dist.barrier()
    assert (len(one.told), len(other.told)) == (0, 2)
    forget(other)
    assert [getattr(module, name) for module in modules for name in names if hasattr(module, name)] == before
    assert kept.all_gather_function is torch_dist.all_gather_into_tensor
    torch_dist.barrier()
    assert len(other.told) == 2


def test_functions_that_deepspeed_keeps_are_heard(ranks: dist.Ranks) -> None:
    kept, heard = SimpleNamespace(all_gather_function=torch_dist.all_gather_into_tensor), Heard()
    listen(heard, (kept,))
    try:
        kept.all_gather_function(output_tensor=torch.empty(3), input_tensor=torch.ones(3), group=None, async_op=False)
    finally:
        forget(heard)
    assert heard.told == [("blocked", True, True)]


def test_rows_of_all_ranks(ranks: dist.Ranks) -> None:
    import numpy as np

    assert dist.gather_rows(np.array([1.5, float("nan")]), ranks).tolist()[0][0] == 1.5
