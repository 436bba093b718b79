"""A stream's ranks as threads of one process: rows that are numbers, and what each rank reads."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ftcore.data.cache import Sample
from ftcore.data.stream_source import Shard
from ftcore.spec.errors import DataError
from ftcore.stream.course import Composed, Course, Made
from ftcore.stream.offers import Int64s, StreamSample
from ftcore.stream.position import gathered
from ftcore.stream.reader import StreamReader
from ftcore.stream.state import Place

Row = tuple[int, int]
ReadUpdate = tuple[list[int], float, dict[str, int], int]
"""Ids, sum of the weights, dropped rows and epoch."""


class NumberedRows:
    """Files whose rows are their own places; row `position` of a file begins at `position`."""

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = rows
        self.picked = 0

    def read(self, file: int, position: int, end: int | None) -> Iterator[tuple[int, int, Row]]:
        for at in range(position, min(self.rows[file], self.rows[file] if end is None else end)):
            yield at, at + 1, (file, at)

    def pick(self, places: Sequence[Place]) -> list[Row]:
        self.picked += len(places)
        return [(place.file, place.position) for place in places]


def samples_of(row: Row) -> tuple[tuple[int, int, int], ...]:
    """0 to 3 samples, by the row's number."""
    file, position = row
    return tuple((file, position, number) for number in range((0, 1, 1, 3, 1)[position % 5]))


def make(rows: Sequence[tuple[Place, Any]]) -> list[Made]:
    """What `samples_of` says, as samples of 2 to 8 tokens; row 13 of file 7 stops the run."""
    made = []
    for place, row in rows:
        if tuple(place) == (7, 13):
            made.append(Made(error=DataError("a bad row", where="position 13")))
            continue
        samples = tuple(
            StreamSample(
                id=file * 10_000 + position * 10 + number,
                sample=Sample(ids=np.arange(2 + (position + number) % 7, dtype=np.int32), spans=np.array([[0, 2]], dtype=np.int32), row=0),
                supervised=1,
                weight=0.1 + position,
                set=file % 2,
            )
            for file, position, number in samples_of(row)
        )
        made.append(Made(samples=samples, dropped=Counter() if samples else Counter(overlong=1)))
    return made


class ThreadedExchange:
    """Sums and gathers between threads."""

    def __init__(self, shared: dict[str, Any], rank: int) -> None:
        self._shared, self._rank = shared, rank

    def sum(self, values: Int64s) -> Int64s:
        return np.sum(self.gather(values), axis=0)

    def gather(self, value: Any) -> list[Any]:
        self._shared["values"][self._rank] = value
        self._shared["barrier"].wait()
        found = list(self._shared["values"])
        self._shared["barrier"].wait()
        return found


def on_ranks(world_size: int, work: Callable[[int, ThreadedExchange], Any]) -> list[Any]:
    """What `work(rank, exchange)` gives on each rank; an error is a result too."""
    shared: dict[str, Any] = {"values": [None] * world_size, "barrier": threading.Barrier(world_size, timeout=20)}
    results: list[Any] = [None] * world_size

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank, ThreadedExchange(shared, rank))
        except Exception as error:  # noqa: BLE001  looked at by the test
            results[rank] = error
            if not isinstance(error, DataError):
                shared["barrier"].abort()

    if world_size == 1:
        run(0)
        return results
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def course(files: Sequence[int], lanes: int, *, buffer: int = 4, samples: int | None = 5, tokens: int | None = None, repeat: bool = False) -> Course:
    """One group of lanes that reads each file whole."""
    shards = tuple(Shard(file=index, start=0, end=None, size=count) for index, count in enumerate(files))
    return Course(
        shards=(shards,), weights=(1.0,), lanes=lanes, buffer_rows=buffer, seed=3, repeat=repeat, samples=samples, tokens=tokens, micro_batch_tokens=8
    )


def read_updates(
    run: Course, files: Sequence[int], world_size: int, *, updates: int = 10_000, position: str | None = None
) -> tuple[list[ReadUpdate], str, int]:
    """(each update; the position after them as JSON; sums over the ranks). All ranks must agree."""

    def work(rank: int, exchange: ThreadedExchange) -> Any:
        start = None if position is None else json.loads(position)
        reader = StreamReader(run, NumberedRows(files), make, exchange, (rank, world_size), start)
        read: list[Composed] = []
        while len(read) < updates and (composed := reader.next()) is not None:
            read.append(composed)
            mine = [int(row[3]) for lane, row in zip(composed.lanes.tolist(), composed.columns, strict=True) if lane % world_size == rank]
            assert [sample.id for sample in composed.mine] == mine
        weights = [float(each.columns[:, 2].view(np.float64).sum()) for each in read]
        told = [(each.columns[:, 3].tolist(), weight, dict(each.dropped), each.epoch) for each, weight in zip(read, weights, strict=True)]
        return told, json.dumps(gathered(reader.position(), exchange.gather)), reader.rounds

    results = on_ranks(world_size, work)
    for result in results:
        if isinstance(result, Exception):
            raise result
        assert result == results[0]
    return results[0]
