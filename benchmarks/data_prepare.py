"""One preparation, timed, for benchmarks.data: `python -m benchmarks.data_prepare ours|trl CHATS MODEL FOLDER PROCESSES`. Prints one JSON object.

Both make ids and labels of the answers of the same chats, with the same tokenizer, template (chatml, whose answers are marked) and length.
Timed is for ours all of `prepare_set`: digests, reading and parsing the file, starting processes, loading the tokenizer, writing the cache.
For TRL it is SFTTrainer's own preparation of its dataset; reading the file and loading the tokenizer come before and are not counted.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEMPLATE, MAX_LENGTH = "chatml", 2048


def main(system: str, chats: str, model: str, folder: str, processes: int) -> None:
    """Prepares, and prints seconds and counts."""
    # What both import goes first, so that nobody's time has it.
    import torch  # noqa: F401
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(model)

    print(json.dumps({"ours": _ours, "trl": _trl}[system](chats, model, Path(folder), processes)))


class Timed:
    """Wall and processor seconds of calls, their finished child processes included."""

    def __init__(self) -> None:
        self.wall_s = self.processor_s = 0.0

    def __call__(self, function: Callable[[], Any]) -> Any:
        wall, processor = time.perf_counter(), _processor_s()
        result = function()
        self.wall_s += time.perf_counter() - wall
        self.processor_s += _processor_s() - processor
        return result


def _processor_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _ours(chats: str, model: str, folder: Path, processes: int) -> dict[str, Any]:
    from ftcore.data.build import prepare_set
    from ftcore.data.prepared import ModelSource
    from ftcore.spec.sections import DataSection, TrainingSet

    train = TrainingSet(path=chats, format="messages")
    data = DataSection(train=train, max_length=MAX_LENGTH, chat_template=TEMPLATE, num_proc=processes)
    source = ModelSource(path=model, revision="", digest="", name=model, trust_remote_code=False)
    cold, warm = Timed(), []
    prepared = cold(lambda: prepare_set("data.train", train, data, source, folder))
    for _ in range(5):
        again = Timed()
        again(lambda: prepare_set("data.train", train, data, source, folder))
        warm.append(again.wall_s)
    counts = {"samples": prepared.samples, "tokens": prepared.tokens, "supervised": prepared.supervised_tokens}
    return {"wall_s": cold.wall_s, "processor_s": cold.processor_s, **counts, "warm_s": warm, "arrow": prepared.arrow}


def _trl(chats: str, model: str, folder: Path, processes: int) -> dict[str, Any]:
    import datasets
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    from ftcore.data.templates.named import template_text

    class TimedTrainer(SFTTrainer):  # type: ignore[misc]
        timed = Timed()

        def _prepare_dataset(self, *given: Any) -> Any:
            return self.timed(lambda: super(TimedTrainer, self)._prepare_dataset(*given))

    datasets.disable_progress_bars()
    rows = datasets.load_dataset("json", data_files=chats, split="train", cache_dir=str(folder))
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = template_text(TEMPLATE)
    small = LlamaForCausalLM(LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=len(tokenizer)))
    config = SFTConfig(
        output_dir=str(folder),
        assistant_only_loss=True,
        max_length=MAX_LENGTH,
        dataset_num_proc=processes if processes > 1 else None,
        use_cpu=True,
        report_to="none",
    )
    made = TimedTrainer(model=small, args=config, train_dataset=rows, processing_class=tokenizer).train_dataset
    labels = [sum(label != -100 for label in row) for row in made["labels"]]
    counts = {"samples": len(made), "tokens": sum(map(len, made["input_ids"])), "supervised": sum(labels)}
    return {"wall_s": TimedTrainer.timed.wall_s, "processor_s": TimedTrainer.timed.processor_s, **counts}


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]))
