"""Ranks agree where to stop: in threads with a real store, at every pace; and what asking costs."""

from __future__ import annotations

import random
import threading
import time

import pytest
from torch.distributed import PrefixStore, TCPStore

from ftcore import agreement
from ftcore.agreement import Agreement
from ftcore.spec.errors import PreemptedError
from ftcore.spec.events import EVENTS_FD, emit_at
from ftcore.stop_request import StopRequest
from tests.unit.live_processes import wait_until

POINTS = 1_000_000
"""More than are passed before a rank is asked, however long that takes."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "POLL_S", 0.005)


@pytest.fixture(scope="module")
def server() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


class Rank(threading.Thread):
    """Passes points at its own pace, in step with the others at some of them as collectives make it."""

    def __init__(self, mine: Agreement, together: threading.Barrier, seed: tuple[int, int], every: int) -> None:
        super().__init__(daemon=True)
        self.agreement, self.stopped_at, self.passed = mine, -1, 0
        self._together, self._random, self._every = together, random.Random(str(seed)), every

    def run(self) -> None:
        for point in range(POINTS):
            if self.agreement.is_stop():
                self.stopped_at = point
                return
            self.passed = point + 1
            if point % self._every == 0:
                self._together.wait(timeout=60)
            time.sleep(self._random.random() * 0.001)


@pytest.mark.parametrize("seed", range(12))
def test_all_ranks_stop_at_one_point(seed: int, server: TCPStore) -> None:
    """However many are asked, whenever, and however far a rank may run ahead of the others between two collectives."""
    draw = random.Random(seed)
    world_size, every = draw.choice([1, 2, 3, 5]), draw.choice([1, 3, 20])
    requests = [StopRequest() for _ in range(world_size)]
    together = threading.Barrier(world_size)
    ranks = []
    for rank, request in enumerate(requests):
        store = PrefixStore(f"{seed}", server.clone())
        ranks.append(Rank(Agreement(store, rank=rank, world_size=world_size, request=request), together, (seed, rank), every))
    asked = draw.sample(range(world_size), draw.randint(1, world_size))
    asked_at_start = draw.random() < 0.3
    for rank in ranks:
        if not asked_at_start:
            rank.start()
    for rank in asked:
        time.sleep(draw.random() * 0.05)
        requests[rank].ask()
        requests[rank].ask()
    for rank in ranks if asked_at_start else ():
        rank.start()
    for rank in ranks:
        rank.join(timeout=60)
    [point] = {rank.stopped_at for rank in ranks}
    assert 0 <= point < POINTS and {rank.passed for rank in ranks} == {point}


def test_whoever_does_not_stop_there_may_go_on(server: TCPStore) -> None:
    request = StopRequest()
    alone = Agreement(PrefixStore("on", server.clone()), rank=0, world_size=1, request=request)
    assert not alone.is_stop()
    request.ask()
    # Its thread has to hear of it first.
    wait_until(alone.is_stop)
    assert [alone.is_stop() for _ in range(3)] == [False, False, False]


def test_work_with_nothing_to_save_is_left(server: TCPStore) -> None:
    request = StopRequest()
    alone = Agreement(PrefixStore("left", server.clone()), rank=0, world_size=1, request=request)
    alone.stop_here()
    request.ask()
    with pytest.raises(PreemptedError, match="asked to"):
        wait_until(alone.stop_here)


def test_a_rank_that_has_gone_ends_the_wait_for_its_answer() -> None:
    server = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    request = StopRequest()
    one_of_two = Agreement(server[0].clone(), rank=0, world_size=2, request=request)
    request.ask()
    # Its thread has told its own point, and waits for the other rank's.
    wait_until(lambda: server[0].check(["passed/0"]))
    threading.Timer(0.2, server.clear).start()
    with pytest.raises(RuntimeError):
        one_of_two.is_stop()


def test_nobody_is_held_back_by_a_store_that_goes_away_unasked() -> None:
    own = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    left = Agreement(own.clone(), rank=0, world_size=2, request=StopRequest())
    del own
    time.sleep(0.1)
    assert not left.is_stop()


def test_a_closed_agreement_hears_nothing(server: TCPStore) -> None:
    request = StopRequest()
    closed = Agreement(PrefixStore("closed", server.clone()), rank=0, world_size=2, request=request)
    closed.close()
    request.ask()
    time.sleep(0.05)
    assert not closed.is_stop()


def test_a_point_and_a_beacon_cost_microseconds(server: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """I03: what a watchdog sees progress by is cheap enough for every micro-step."""
    monkeypatch.delenv(EVENTS_FD, raising=False)
    mine = Agreement(PrefixStore("cost", server.clone()), rank=0, world_size=1, request=StopRequest())
    for call in (mine.is_stop, lambda: emit_at("train", 1)):
        # The least of many short trials: a machine that is busy takes the processor away in some of them.
        assert min(_seconds(call) for _ in range(100)) < 20e-6


def _seconds(call: object) -> float:
    """Of one of two hundred calls."""
    assert callable(call)
    began = time.perf_counter()
    for _ in range(200):
        call()
    return (time.perf_counter() - began) / 200
