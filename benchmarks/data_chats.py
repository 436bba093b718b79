"""Chats for the benchmark of preparation: dialogues of the handed GSM8K and ShareGPT files, one to four turns, with variations so that no two are equal."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
SYSTEM = "You are a patient teacher. Work step by step, and give the answer last."


def write_chats(path: Path, count: int, seed: int = 0) -> None:
    """A JSONL file of `count` rows in the format messages. Four of five are of GSM8K, in one to four turns; the others of ShareGPT."""
    random_ = random.Random(seed)
    sums = [json.loads(line) for line in (SHARED / "gsm8k_train.jsonl").read_text(encoding="utf-8").splitlines()]
    talks = [row["conversations"] for row in json.loads((SHARED / "sharegpt_dummy_conversation.json").read_text(encoding="utf-8"))]
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            messages = _talk(random_.choice(talks)) if number % 5 == 4 else _sums(random_.sample(sums, random_.choice((1, 1, 2, 3, 4))))
            messages[-1]["content"] += f" (No. {number})"
            system = [{"role": "system", "content": SYSTEM}] if number % 2 else []
            file.write(json.dumps({"messages": system + messages}, ensure_ascii=False) + "\n")


def _sums(chosen: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [
        message
        for row in chosen
        for message in ({"role": "user", "content": str(row["question"])}, {"role": "assistant", "content": str(row["answer"])})
    ]


def _talk(turns: list[dict[str, str]]) -> list[dict[str, str]]:
    roles = {"human": "user", "gpt": "assistant"}
    return [{"role": roles[turn["from"]], "content": turn["value"]} for turn in turns]
