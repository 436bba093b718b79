"""Let a model answer, greedily and in batches: alone, or dealt over ranks.

Axes: B rows of a batch, T tokens of the longest prompt in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig

from ftcore.questions import Question, TokenIds, prompt_ids, stop_ids

MOST_ROWS = 24
"""Rows of a batch."""
TOKENS_FOR_TRAINED_ONE = 4
"""A token of a batch that is only generated from takes far less memory than one that is trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds answers and batches."""

    max_new_tokens: int
    """Longest answer."""
    batch_tokens: int
    """Prompt and answer tokens of a batch; one row may be longer."""
    positions: int | None = None
    """Positions that the model has; None: any number."""


Round = tuple[tuple[int, ...], ...]
"""For each rank the prompts that it answers together; empty for a rank that has none left."""


def deal_prompts(lengths: Sequence[int], world_size: int, limits: Limits) -> list[Round]:
    """Every prompt to one rank of one round, longest first, prompts of like length together. Pure; every rank works out the same."""
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    rounds: list[Round] = []
    start = 0
    while start < len(order):
        fitting = limits.batch_tokens // (lengths[order[start]] + limits.max_new_tokens)
        each = max(1, min(MOST_ROWS, fitting, -(-(len(order) - start) // world_size)))
        chosen = order[start : start + each * world_size]
        rounds.append(tuple(tuple(chosen[rank::world_size]) for rank in range(world_size)))
        start += len(chosen)
    return rounds


@contextmanager
def ready_to_generate(model: Any) -> Iterator[Any]:
    """The transformers model inside `model` (adapters in place), set for greedy generation, and as it was afterwards.

    Its own generation settings (temperature, repetition penalty, ...) are put aside, so that answers depend on nothing but the weights;
    attention that keeps packed samples apart knows no padding and no cache.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    attention, settings = base.config._attn_implementation, base.generation_config
    if attention == "ft_segments":
        base.set_attn_implementation("sdpa")
    base.generation_config = GenerationConfig()
    try:
        yield base
    finally:
        base.generation_config = settings
        if attention == "ft_segments":
            base.set_attn_implementation(attention)


@torch.no_grad()
def generate_batch(base: Any, prompts: Sequence[TokenIds], *, stops: list[int], max_new_tokens: int, in_step: bool = False) -> list[TokenIds]:
    """The tokens that follow each prompt, up to and without the first of `stops`; `base` comes from `ready_to_generate`.

    Prompts are padded on the left, so that every row continues at its own end. With `in_step` all ranks must call it together, and each
    goes on with forward passes until the last one has finished: in ZeRO stage 3 every forward gathers weights from all.
    """
    longest = max(len(prompt) for prompt in prompts)
    device = next(base.parameters()).device
    filler = stops[0] if stops else 0
    ids_BT = torch.full((len(prompts), longest), filler, dtype=torch.long, device=device)
    mask_BT = torch.zeros_like(ids_BT)
    for row, prompt in enumerate(prompts):
        begin = longest - len(prompt)
        ids_BT[row, begin:] = torch.tensor(prompt)
        mask_BT[row, begin:] = 1
    output = base.generate(
        input_ids=ids_BT,
        attention_mask=mask_BT,
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=stops or None,
        pad_token_id=filler,
        use_cache=True,
        synced_gpus=in_step,
    )
    return [_until_stop(row[longest:].tolist(), stops) for row in output]


def generate_greedily(model: Any, prompts: Sequence[TokenIds], *, stops: list[int], max_new_tokens: int, batch_size: int) -> list[TokenIds]:
    """The tokens that follow each prompt, by one process that holds the whole model; batches hold prompts of like length."""
    answers: list[TokenIds] = [() for _ in prompts]
    by_length = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    with ready_to_generate(model) as base:
        for start in range(0, len(by_length), batch_size):
            chosen = by_length[start : start + batch_size]
            found = generate_batch(base, [prompts[index] for index in chosen], stops=stops, max_new_tokens=max_new_tokens)
            for index, answer in zip(chosen, found, strict=True):
                answers[index] = answer
    return answers


def answer_all(model: Any, tokenizer: Any, questions: Sequence[Question], *, max_new_tokens: int, batch_size: int = MOST_ROWS) -> list[str]:
    """What the model answers to each question of messages in at most `max_new_tokens`, without special tokens."""
    prompts = [prompt_ids(tokenizer, question) for question in questions]
    stops = stop_ids(tokenizer, model.generation_config.eos_token_id, chat=True)
    generated = generate_greedily(model, prompts, stops=stops, max_new_tokens=max_new_tokens, batch_size=batch_size)
    return [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in generated]


def _until_stop(ids: Sequence[int], stops: Sequence[int]) -> TokenIds:
    return tuple(ids[: next((position for position, token in enumerate(ids) if token in stops), len(ids))])
