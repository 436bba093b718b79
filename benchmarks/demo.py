"""The main job on a real pretrained model, and what it learned: `make demo`, or `python -m benchmarks.demo [--max-steps N] [--output RUN]`.

Fine-tunes SmolLM2-135M-Instruct with LoRA through DeepSpeed ZeRO-3 on two ranks to turn messages into JSON, by the same command that a user would type.
Then the trained model and its base answer held-out questions. Every number printed comes from the run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SPEC = ROOT / "specs" / "smollm2-lora.yaml"
EXAMPLES = 3
SPARE_TOKENS = 16
"""An answer is cut this many tokens after the longest one expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The run's own numbers."""

    loss_before: float
    """Evaluation loss per supervised token, before the first update."""
    loss_after: float
    updates: int
    evaluated_tokens: int
    tokens_per_s: float
    """Over all ranks and updates, evaluation and saving left out."""
    supervised_tokens_per_s: float


def main() -> int:
    """Trains, compares, prints. Returns the exit status of the run where it failed, else 0."""
    given = _arguments()
    started = time.perf_counter()
    run = given.output or ROOT / "runs" / time.strftime("demo-%Y%m%d-%H%M%S")
    status = launch(run, given.max_steps)
    if status:
        return status
    learned = read_learned(run)
    questions, before, after = compare(run, given.rows)
    print_report(learned, questions, before, after)
    print(f"\nIn all {time.perf_counter() - started:.0f} s. The run folder, with the adapter in model/: {_shown(run)}")
    return 0


def launch(run: Path, max_steps: int | None) -> int:
    """Runs `ftlaunch` with its progress on this terminal; returns its exit status (128 + N for a signal N)."""
    command = [str(Path(sys.executable).with_name("ftlaunch")), "--spec", _shown(SPEC), "-o", _shown(run)]
    if max_steps is not None:
        command += ["--set", f"train.max_steps={max_steps}"]
    print("$ ftlaunch " + " ".join(command[1:]), flush=True)
    if not Path(command[0]).exists():
        print(f"{command[0]} is not there: run `make install`", file=sys.stderr)
        return 2
    child = subprocess.Popen(command)
    while True:
        try:
            status = child.wait()
            break
        except KeyboardInterrupt:
            continue  # the terminal sent it to ftlaunch too, which ends its ranks and then itself
    return 128 - status if status < 0 else status


def read_learned(run: Path) -> Learned:
    """From RUN/events.jsonl and RUN/metrics.jsonl."""
    evaluations = [event for event in _lines(run / "events.jsonl") if event["event"] == "evaluation"]
    updates = _lines(run / "metrics.jsonl")
    seconds = sum(update["seconds"] for update in updates)
    return Learned(
        loss_before=evaluations[0]["loss"],
        loss_after=evaluations[-1]["loss"],
        updates=updates[-1]["update"],
        evaluated_tokens=evaluations[-1]["tokens"],
        tokens_per_s=sum(update["tokens"] for update in updates) / seconds,
        supervised_tokens_per_s=sum(update["supervised_tokens"] for update in updates) / seconds,
    )


def compare(run: Path, rows: int) -> tuple[list[Any], list[str], list[str]]:
    """The first held-out questions, and what the base and the trained model answer to them."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is on this disk
    import torch
    import transformers.utils.logging
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ftcore.answers import answer_all
    from ftcore.data.prepared import load_prepared
    from ftcore.questions import longest_expected, read_questions
    from ftcore.spec.resolved import load_resolved
    from ftcore.spec.run_dir import RunDir

    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore", FutureWarning)  # of these libraries to each other
    paths = RunDir(run)
    resolved = load_resolved(paths.resolved)
    evaluation = resolved.spec.data.eval
    if evaluation is None:
        raise SystemExit(f"{run} has no evaluation set: nothing to ask")
    questions = read_questions(evaluation, range(1, rows + 1), "data.eval", Path(resolved.cache_dir))
    base_path = load_prepared(paths.prepared).model.path
    base = AutoModelForCausalLM.from_pretrained(base_path, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, str(paths.model)).to("cuda" if torch.cuda.is_available() else "cpu").eval()
    tokenizer = AutoTokenizer.from_pretrained(str(paths.model))
    print(f"\nAsking {len(questions)} held-out questions, first without the adapter, then with it ...", flush=True)
    limit = longest_expected(tokenizer, questions) + SPARE_TOKENS
    with model.disable_adapter():
        before = answer_all(model, tokenizer, questions, max_new_tokens=limit)
    return questions, before, answer_all(model, tokenizer, questions, max_new_tokens=limit)


def print_report(learned: Learned, questions: list[Any], before: list[str], after: list[str]) -> None:
    """The table, the examples and the speed."""
    from ftcore.scoring.answer_metrics import metrics_for

    shares = {
        name: [statistics.fmean(map(measure, [question.expected for question in questions], answers)) for answers in (before, after)]
        for name, measure in metrics_for(["exact_match", "valid_json"], "").items()
    }
    rows = [
        ("", "before", "after"),
        (f"evaluation loss per supervised token ({learned.evaluated_tokens} tokens)", f"{learned.loss_before:.4f}", f"{learned.loss_after:.4f}"),
        (f"answers that are a valid JSON object (of {len(questions)})", *(f"{share:.0%}" for share in shares["valid_json"])),
        (f"answers that match exactly (of {len(questions)})", *(f"{share:.0%}" for share in shares["exact_match"])),
    ]
    print(f"\nWhat {learned.updates} updates taught:")
    for name, first, second in rows:
        print(f"  {name:<60}{first:>9}{second:>9}")
    print("\nThree of them:")
    for question, first, second in list(zip(questions, before, after, strict=True))[:EXAMPLES]:
        print(f"  asked     {_one_line(question.messages[-1]['content'])}")
        print(f"  before    {_one_line(first)}")
        print(f"  after     {_one_line(second)}")
        print(f"  expected  {_one_line(question.expected)}\n")
    print(f"Speed: {learned.tokens_per_s:.0f} tokens/s, of them {learned.supervised_tokens_per_s:.0f} supervised (all ranks together, while training)")


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 160 else flat[:157] + "..."


def _shown(path: Path) -> str:
    """Relative to the current folder where it lies in it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-steps", type=int, help="updates (default: the spec's)")
    parser.add_argument("--output", type=lambda text: Path(text).resolve(), help="the run folder (default: runs/demo-TIME)")
    parser.add_argument("--rows", type=int, default=24, help="held-out questions to ask (default: 24)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
