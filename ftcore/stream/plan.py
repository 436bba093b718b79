"""What a run on a stream will do, as far as it is known before it starts. Lives in RUN/plan.json and RUN/plan.txt."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ftcore.batch.cost import AttentionShare, attention_share_of
from ftcore.batch.precision import describe_precision
from ftcore.data.cache import SampleSet
from ftcore.data.prepared import Prepared
from ftcore.data.stream_source import StreamSource
from ftcore.spec.resolved import ResolvedSpec
from ftcore.stream.shards import lanes_without_shard


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """What is known; samples and tokens are counted only while training."""

    streaming: bool = True
    world_size: int
    zero_stage: int
    precision: str
    """The types that weights, gradients and optimizer state are held in."""
    total_updates: int
    """Updates of the run; without repeat it ends before when the data do."""
    repeat: bool
    global_batch_size: int | None
    """Samples of an update; None where tokens are counted."""
    tokens_per_update: int | None
    sets: dict[str, dict[str, str | int]]
    """Set -> its format, how that was found, its files and their bytes."""
    files: int
    bytes: int
    """Of all files as they are stored."""
    rows: int | None
    """Rows of an epoch, where the files say so; None: not known beforehand."""
    shards: int
    """Parts of files that lanes read."""
    lanes: int
    shuffle_buffer: int
    """Rows that a lane holds to draw from."""
    attention_share: AttentionShare
    """What attention adds to the cost of a sample."""
    notes: tuple[str, ...]
    """What a reader would not expect."""
    eval_samples: dict[str, int]
    """Evaluation set -> samples."""
    eval_supervised_tokens: dict[str, int]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    def render(self) -> str:
        """plan.txt."""
        size = f"{self.global_batch_size} samples" if self.global_batch_size is not None else f"at most {self.tokens_per_update:,} tokens"
        rows = [
            ("ranks", f"{self.world_size}, ZeRO stage {self.zero_stage}"),
            ("numeric types", self.precision),
            ("training data", "streamed: samples and tokens are counted while training"),
            ("files", f"{self.files:,} with {self.bytes:,} bytes"),
            ("rows an epoch", f"{self.rows:,}" if self.rows is not None else "not known beforehand"),
            ("lanes", f"{self.lanes} over {self.shards:,} parts of files, {self.shuffle_buffer:,} rows held in each"),
            ("an update", size),
            ("updates", f"{self.total_updates:,}" + ("" if self.repeat else " at most: the run ends with the data")),
        ]
        rows += [(f"training set {name}", f"{each['format']} ({each['reason']}), {each['files']:,} files") for name, each in self.sets.items()]
        for name, samples in self.eval_samples.items():
            rows.append((f"evaluation set {name}", f"{samples:,} samples with {self.eval_supervised_tokens[name]:,} supervised tokens"))
        return "\n".join(f"{name + ':':<30}{value}" for name, value in rows) + "\n" + "".join(f"\nNote: {text}.\n" for text in self.notes)


def plan_stream(resolved: ResolvedSpec, source: StreamSource, evaluation: dict[str, SampleSet], prepared: Prepared) -> StreamPlan:
    """The plan of a run on `source`."""
    spec = resolved.spec
    return StreamPlan(
        world_size=resolved.world_size,
        zero_stage=spec.zero.stage,
        precision=describe_precision(spec),
        total_updates=spec.train.max_steps or 0,
        repeat=spec.data.repeat,
        global_batch_size=spec.batch.global_batch_size,
        tokens_per_update=spec.batch.tokens_per_update,
        sets={each.name: _describe_set(source, index) for index, each in enumerate(source.sets)},
        files=len(source.files),
        bytes=sum(file.size for file in source.files),
        rows=source.rows,
        shards=len(source.shards),
        lanes=source.lanes * len(source.groups),
        shuffle_buffer=source.buffer_rows,
        attention_share=attention_share_of(prepared.model.path),
        notes=tuple(_notes(source, resolved.world_size)),
        eval_samples={name: len(held_out) for name, held_out in evaluation.items()},
        eval_supervised_tokens={name: int(held_out.supervised.sum(dtype=np.int64)) for name, held_out in evaluation.items()},
    )


def _describe_set(source: StreamSource, index: int) -> dict[str, str | int]:
    each = source.sets[index]
    own = [file for file in source.files if file.set == index]
    return {"format": each.dataset.format, "reason": each.reason, "revision": each.revision, "files": len(own), "bytes": sum(file.size for file in own)}


def _notes(source: StreamSource, world_size: int) -> Iterator[str]:
    lanes = source.lanes * len(source.groups)
    idle = sum(lanes_without_shard(len(shards), source.lanes) for shards in source.groups)
    if idle:
        yield f"{idle} of {lanes} lanes have nothing to read: the files can't be cut into more than {len(source.shards)} parts; fewer data.lanes lose nothing"
    if world_size > lanes:
        yield f"{world_size - lanes} of {world_size} ranks have no lane and compute fillers alone: raise data.lanes to {world_size}, or to a multiple of it"
    elif lanes % world_size:
        yield f"{lanes} lanes don't spread evenly over {world_size} ranks: some compute more samples; make data.lanes a multiple of the ranks"
    packed = [file.name for file in source.files if file.compression]
    if packed:
        yield f"{len(packed)} files are compressed, {packed[0]} for one: each is one part, and a resume unpacks it from its beginning"
