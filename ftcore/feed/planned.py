"""Feeds a run whose updates are known beforehand: window, deal and collate by the update's number alone, ahead of the training."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ftcore.batch.collate import MicroBatch, collate
from ftcore.batch.deal import Deal, deal
from ftcore.batch.window import UpdateSequence
from ftcore.data.mix import SampleMix, counts_by_set
from ftcore.dist import Ranks
from ftcore.feed.ahead import Ahead
from ftcore.feed.fed_update import LONGEST_SAMPLES, Counts, FedUpdate, Int64s
from ftcore.feed.host_memory import on_host
from ftcore.feed.layout import Layout


class PlannedFeeder:
    """One rank's feeder. The update's number is all there is to know of a position: any update is found by seek, at the same cost."""

    def __init__(
        self, samples: SampleMix, sequence: UpdateSequence, layout: Layout, ranks: Ranks, *, ahead: int = 0, reorder_seed: int | None = None
    ) -> None:
        """`ahead`: updates that are put together before they are asked for. `reorder_seed`: another order inside each micro-step; None: as dealt."""
        self._samples, self._sequence, self._layout, self._ranks = samples, sequence, layout, ranks
        self._reorder_seed = reorder_seed
        self._ahead: Ahead[FedUpdate] = Ahead(self._make, depth=ahead, until=sequence.total_updates)
        self.total_updates: int = sequence.total_updates
        self.wait_s = 0.0

    def next(self, update: int) -> FedUpdate | None:
        """The update numbered `update`, None from `total_updates` on; any order will do, but ahead is only what follows."""
        if update >= self.total_updates:
            return None
        started = time.perf_counter()
        fed = self._ahead.get(update)
        self.wait_s = time.perf_counter() - started
        return fed

    def whole_position(self, position: dict[str, Any]) -> dict[str, Any] | None:
        """None: the update's number says it all."""
        return None

    def close(self) -> None:
        """Ends the thread that works ahead."""
        self._ahead.close()

    def _make(self, update: int) -> FedUpdate:
        window = self._sequence.window(update)
        ids = window.sample_ids
        dealt = self._deal(ids)
        parts = self._parts(update, [ids[part] for part in dealt.parts[self._ranks.rank]])
        lengths = self._samples.lengths[ids]
        after = update + 1
        return FedUpdate(
            update=update,
            epoch=window.epoch,
            epoch_progress=window.epoch_progress,
            epoch_after=self._sequence.window(after).epoch if after < self._sequence.total_updates else window.epoch,
            sample_ids=ids,
            parts=parts,
            batches=[self._collated(part) for part in parts],
            weight_sum=float(self._samples.weight_sums[ids].sum()),
            counts=Counts(samples=len(ids), tokens=int(lengths.sum(dtype=np.int64)), supervised_tokens=int(self._samples.supervised[ids].sum(dtype=np.int64))),
            computed_tokens=sum(self._layout.computed_tokens(lengths[part]) for parts_of_rank in dealt.parts for part in parts_of_rank),
            by_set=self._by_set(ids),
            longest=tuple(int(sample) for sample in ids[np.argsort(-lengths, kind="stable")[:LONGEST_SAMPLES]]),
        )

    def _collated(self, part: Int64s) -> MicroBatch:
        batch = collate([self._samples.sample(int(sample)) for sample in part], self._layout.layout)
        return on_host(batch, self._ranks.device)

    def _by_set(self, ids: Int64s) -> dict[str, Counts]:
        if len(self._samples.names) == 1:
            return {}
        counted = counts_by_set(self._samples, ids)
        return {name: Counts(samples=samples, tokens=tokens, supervised_tokens=supervised) for name, (samples, tokens, supervised) in counted.items()}

    def _deal(self, ids: Int64s) -> Deal:
        return deal(
            self._samples.lengths[ids],
            world_size=self._ranks.world_size,
            micro_batch_tokens=self._layout.micro_batch_tokens,
            attention_share=self._layout.attention_share,
            layout=self._layout.layout,
        )

    def _parts(self, update: int, parts: list[Int64s]) -> list[Int64s]:
        """This rank's samples by micro-step, in the order in which they are computed."""
        if self._reorder_seed is None:
            return parts
        return [np.random.default_rng((self._reorder_seed, update, step)).permutation(part) for step, part in enumerate(parts)]
