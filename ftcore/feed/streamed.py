"""Feeds a run from a stream: each rank reads its lanes, and the ranks agree on every update by one small sum over them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ftcore.batch.collate import MicroBatch, collate
from ftcore.batch.cursor import Cursor
from ftcore.batch.deal import deal
from ftcore.data.prepared import ModelSource
from ftcore.data.stream_source import StreamSource
from ftcore.dist import HostGroup, Ranks, gather_objects
from ftcore.feed.fed_update import LONGEST_SAMPLES, Counts, FedUpdate, Int64s
from ftcore.feed.host_memory import on_host
from ftcore.feed.layout import Layout
from ftcore.feed.posted import Posted
from ftcore.spec.sections import Spec
from ftcore.stream.course import Composed, course_of
from ftcore.stream.offers import TRUNCATED
from ftcore.stream.position import gathered
from ftcore.stream.reader import StreamReader
from ftcore.stream.rows import FileRows
from ftcore.stream.samples import SampleMaker


def open_stream(
    source: StreamSource, spec: Spec, model: ModelSource, layout: Layout, ranks: Ranks, cursor: Cursor, *, reorder_seed: int | None = None
) -> StreamedFeeder:
    """What feeds this rank from the cursor on; nothing is read before the first update is asked for. Every rank must call it.

    Raises CheckpointError when the cursor's position is not one of this stream.
    """
    group = HostGroup(ranks)
    files = FileRows([file.data_file for file in source.files])
    maker = SampleMaker(source, spec.data, model)
    reader = StreamReader(course_of(source, spec), files, maker, group, (ranks.rank, ranks.world_size), cursor.stream, first_epoch=cursor.epoch)
    names = tuple(each.name for each in source.sets)
    return StreamedFeeder(reader, names, layout, ranks, range(cursor.next_update, spec.train.max_steps or 0), (spec.data.prefetch_updates, reorder_seed))


class StreamedFeeder:
    """One rank's feeder. Updates come in order, each once."""

    def __init__(
        self,
        reader: StreamReader,
        names: tuple[str, ...],
        layout: Layout,
        ranks: Ranks,
        updates: range,
        how: tuple[int, int | None],
    ) -> None:
        """`names` are those of the sets. `updates` begins with the one after the cursor's last. `how`: updates that are put together before they are
        asked for, and the seed of another order inside each micro-step (None: as dealt).
        """
        self._reader, self._names, self._layout, self._ranks = reader, names, layout, ranks
        ahead, self._reorder_seed = how
        self._ahead: Posted[FedUpdate | None] = Posted(self._make, first=updates.start, until=updates.stop, depth=ahead)
        self._ended = False
        self.total_updates: int = updates.stop
        self.wait_s = 0.0

    def next(self, update: int) -> FedUpdate | None:
        """The update numbered `update`, the one after the last; None when the data have ended before it, and from `total_updates` on.

        Raises DataError on all ranks when a row of any rank stops the run.
        """
        if self._ended or update >= self.total_updates:
            return None
        started = time.perf_counter()
        fed = self._ahead.get(update)
        self.wait_s = time.perf_counter() - started
        self._ended = fed is None
        return fed

    def whole_position(self, position: dict[str, Any]) -> dict[str, Any] | None:
        """What a cursor keeps, made of every rank's `FedUpdate.position` of the same update; every rank calls it."""
        return gathered(position, lambda value: gather_objects(value, self._ranks))

    def close(self) -> None:
        """Ends the thread that works ahead, once it has read what all ranks read."""
        self._ahead.close()

    def _make(self, update: int) -> FedUpdate | None:
        composed = self._reader.next()
        if composed is None:
            return None
        lengths, ids, sets = composed.columns[:, 0], composed.columns[:, 3], composed.columns[:, 4] % TRUNCATED
        parts, computed = self._parts(update, composed)
        return FedUpdate(
            update=update,
            epoch=composed.epoch,
            epoch_progress=composed.epoch_progress,
            epoch_after=composed.epoch_after,
            sample_ids=ids,
            parts=[np.array([composed.mine[index].id for index in part], dtype=np.int64) for part in parts],
            batches=[self._collated(composed, part) for part in parts],
            weight_sum=float(composed.columns[:, 2].view(np.float64).sum()),
            counts=_counts(composed.columns),
            computed_tokens=computed,
            by_set={name: _counts(composed.columns[sets == index]) for index, name in enumerate(self._names)} if len(self._names) > 1 else {},
            position=composed.position,
            dropped_rows=dict(composed.dropped),
            truncated=int((composed.columns[:, 4] >= TRUNCATED).sum()),
            longest=tuple(int(sample) for sample in ids[np.argsort(-lengths, kind="stable")[:LONGEST_SAMPLES]]),
        )

    def _collated(self, composed: Composed, part: Int64s) -> MicroBatch:
        return on_host(collate([composed.mine[int(index)].sample for index in part], self._layout.layout), self._ranks.device)

    def _parts(self, update: int, composed: Composed) -> tuple[list[Int64s], int]:
        """This rank's samples, by number among its own, for each micro-step: as many micro-steps as the rank needs that needs most.

        And the positions that all ranks compute.
        """
        owners = composed.lanes % self._ranks.world_size
        lengths = [composed.columns[owners == rank, 0] for rank in range(self._ranks.world_size)]
        deals = [self._deal(each) for each in lengths]
        steps = max(1, *(len(parts) for parts in deals))
        for parts in deals:
            parts.extend([np.zeros(0, dtype=np.int64)] * (steps - len(parts)))
        computed = sum(self._layout.computed_tokens(each[part]) for each, parts in zip(lengths, deals, strict=True) for part in parts)
        mine = deals[self._ranks.rank]
        if self._reorder_seed is None:
            return mine, computed
        return [np.random.default_rng((self._reorder_seed, update, step)).permutation(part) for step, part in enumerate(mine)], computed

    def _deal(self, lengths: Int64s) -> list[Int64s]:
        layout = self._layout
        budget, share = layout.micro_batch_tokens, layout.attention_share
        return list(deal(lengths.astype(np.int32), world_size=1, micro_batch_tokens=budget, attention_share=share, layout=layout.layout).parts[0])


def _counts(columns: Int64s) -> Counts:
    return Counts(samples=len(columns), tokens=int(columns[:, 0].sum()), supervised_tokens=int(columns[:, 1].sum()))
