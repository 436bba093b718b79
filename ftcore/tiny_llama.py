"""A small Llama built in code, so that a first run needs no download. It knows nothing yet, and learns fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ftcore.data.lock import new_folder
from ftcore.spec.builtin_models import TINY_LLAMA_CONFIG
from ftcore.spec.events import emit

SEED = 7
SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def build_tiny_llama(folder: Path) -> None:
    """Writes the model (float32, about 0.9 million parameters) and its byte-level tokenizer to `folder`. The same weights on every machine."""
    emit("progress", stage="prepare", done=0, total=0, text="building the tiny Llama")
    with new_folder(folder) as aside:
        tokenizer = tiny_tokenizer()
        tokenizer.save_pretrained(aside)
        _model(tokenizer).save_pretrained(aside)


def tiny_tokenizer() -> Any:
    """One token a byte, plus the special ones; ChatML-like template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    wrap: Any = PreTrainedTokenizerFast
    tokenizer = wrap(tokenizer_object=backend, pad_token="<|pad|>", eos_token="<|im_end|>", clean_up_tokenization_spaces=False)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _model(tokenizer: Any) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **{key: value for key, value in TINY_LLAMA_CONFIG.items() if key != "model_type"},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    # The constructor draws from the global generator; the weights are drawn again below, from one of their own.
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            if weight.dim() > 1:
                weight.normal_(0.0, weight.shape[1] ** -0.5 / 2, generator=generator)
    return model
