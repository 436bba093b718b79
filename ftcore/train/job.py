"""Everything a run trains with, and what feeds it."""

from __future__ import annotations

from dataclasses import dataclass

from ftcore.batch.cost import AttentionShare
from ftcore.batch.cursor import Cursor
from ftcore.batch.data_identity import DataIdentity
from ftcore.batch.window import UpdateSequence
from ftcore.data.cache import SampleSet
from ftcore.data.mix import SampleMix
from ftcore.data.prepared import ModelSource
from ftcore.data.stream_source import StreamSource
from ftcore.dist import Ranks
from ftcore.feed.fed_update import Feeder
from ftcore.feed.layout import Layout
from ftcore.feed.planned import PlannedFeeder
from ftcore.feed.streamed import open_stream
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything a run trains with; the engine and the cursor are what changes."""

    spec: Spec
    run_dir: RunDir
    train: SampleMix | None
    """None: the rows to train on come from `stream`."""
    held_out: dict[str, SampleSet]
    """Evaluation sets by name."""
    sequence: UpdateSequence | None
    """None with a stream."""
    attention_share: float | AttentionShare
    base: ModelSource
    stream: StreamSource | None = None
    """What is read during the training; None: everything is prepared."""
    reorder_seed: int | None = None
    """Computes the samples of each micro-step in another order: the same sums with other rounding. None: as they are dealt."""

    @property
    def layout(self) -> Layout:
        """How samples become micro-steps."""
        batch = self.spec.batch
        return Layout(micro_batch_tokens=batch.micro_batch_tokens, attention_share=self.attention_share, layout=batch.layout)

    @property
    def data(self) -> DataIdentity:
        """The training data, as what a position in them belongs to."""
        if self.stream is not None:
            return DataIdentity.of_stream(self.stream)
        return DataIdentity.of_sets(self.train, self.sequence.order)

    @property
    def total_updates(self) -> int:
        """Updates of the run; data that end before end it."""
        return self.sequence.total_updates if self.sequence is not None else self.spec.train.max_steps or 0

    @property
    def samples_an_update(self) -> int:
        """About so many, where tokens are counted."""
        batch = self.spec.batch
        # Of a stream's lengths nothing is known beforehand.
        length = float(self.train.lengths.mean()) if self.train is not None else self.spec.data.max_length / 2
        return batch.global_batch_size or max(1, round((batch.tokens_per_update or 0) / length))

    def open_feeder(self, ranks: Ranks, cursor: Cursor) -> Feeder:
        """What feeds this rank from the cursor on; nothing is read before the first update is asked for. Every rank must call it."""
        if self.stream is not None:
            return open_stream(self.stream, self.spec, self.base, self.layout, ranks, cursor, reorder_seed=self.reorder_seed)
        ahead = self.spec.data.prefetch_updates
        return PlannedFeeder(self.train, self.sequence, self.layout, ranks, ahead=ahead, reorder_seed=self.reorder_seed)
