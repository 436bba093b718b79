"""A small Llama with real weights on disk, and sample sets with uneven lengths, for rank tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ftcore.data.cache import Counts, SampleSet, write_samples
from ftcore.data.prepared import ModelSource
from ftcore.data.tokens import count_supervised

VOCABULARY = 97


def save_small_llama(folder: Path, *, layers: int = 2) -> ModelSource:
    """Width 32, grouped-query attention, tied head; seeded."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)  # larger than the initialiser's 0.02, so that a wrong gradient shows
    model.save_pretrained(folder)
    vocabulary = {f"w{index}": index for index in range(VOCABULARY)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="w0")), eos_token="w2").save_pretrained(folder)
    return ModelSource(path=str(folder), revision="main", digest="small", name=str(folder), trust_remote_code=False)


def write_uneven_samples(path: Path, *, count: int = 41, seed: int = 5) -> SampleSet:
    """Lengths 3 to 40; every seventh sample has one supervised token, every eleventh has none after the shift."""
    random = np.random.default_rng(seed)
    ids, spans = [], []
    for row in range(count):
        length = int(random.integers(3, 41))
        ids.append(random.integers(3, VOCABULARY, size=length).astype(np.int32))
        start = int(random.integers(1, length))
        if row % 11 == 10:
            spans.append([(0, 1)])
        elif row % 7 == 0:
            spans.append([(length - 1, length)])
        else:
            spans.append([(1, 2), (start, length)] if start > 2 else [(1, length)])
    counts = Counts(rows=count, tokens=sum(len(row) for row in ids), supervised_tokens=sum(count_supervised(pairs) for pairs in spans))
    write_samples(path, ids, spans, list(range(1, count + 1)), counts)
    return SampleSet.open(path)
