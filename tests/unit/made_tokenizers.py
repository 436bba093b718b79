"""Tokenizers of the kinds in use, trained here on a few texts, and chat templates written by us in the grammar of well-known models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from ftcore.data.extraction import extraction_rows

TEXTS = [message["content"] for row in extraction_rows()[:300] for message in row["messages"]]
# Doubled newlines and spaces make tokens that reach over the edge between a header and an answer.
TEXTS += [
    "assistant\n\nHello",
    "\n\n\n\n",
    "  two  spaces  ",
    "user\n\n  indented\n\n    more",
    "é à ñ 日本語 👍🏽 naïve",
    ": a: b :: c",
    "] x] [y [INST] q [/INST] a",
] * 40


def byte_level(*, specials: tuple[str, ...], bos: str | None = None, trim_offsets: bool = False, nfc: bool = False, rstrip: bool = False) -> Any:
    """Byte-level BPE: like GPT-2, Llama-3 (bos), Qwen (nfc), Phi-3 (special tokens that take the white space after them)."""
    backend = Tokenizer(models.BPE())
    if nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False, rstrip=rstrip) for token in specials])
    parts: list[Any] = [processors.ByteLevel(trim_offsets=trim_offsets)]
    if bos:
        parts.append(processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, backend.token_to_id(bos))]))
    backend.post_processor = processors.Sequence(parts)
    return backend


def sentencepiece_like(*, specials: tuple[str, ...], bos: str, words_apart: bool = True) -> Any:
    """BPE over ▁-marked words with byte fallback, like Llama-2, Mistral and Gemma: a text gets a space in front.

    Without `words_apart` tokens may reach over the space between two words.
    """
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    if words_apart:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    backend.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>", *bytes_], show_progress=False))
    backend.pre_tokenizer = None
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    backend.post_processor = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, backend.token_to_id(bos))])
    return backend


def wrap(backend: Any, *, template: str | None, eos: str | None, bos: str | None = None, pad: str | None = None) -> Any:
    """The transformers tokenizer around it."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos, bos_token=bos, pad_token=pad, clean_up_tokenization_spaces=False)
    tokenizer.chat_template = template
    return tokenizer


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant/user/assistant') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
PHI3 = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\nTools: ' + (tools | tojson) + '<|im_end|>\n' }}"
    "{% endif %}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['content'] is defined %}{{ m['content'] }}{% endif %}{% for call in m['tool_calls'] or [] %}"
    "{{ '<tool_call>' + (call['function'] | tojson) + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """A tokenizer with a template, and what an answer must look like among the supervised tokens."""

    name: str
    make: Callable[[], Any]
    answer: Callable[[str], str]
    takes_system: bool = True
    after_last: str = ""
    """What the template writes after the last turn's end."""


IM = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
HEADER = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
TURN = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
PHI = ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|endoftext|>")

FAMILIES = (
    Family("chatml", lambda: wrap(byte_level(specials=IM), template=CHATML, eos="<|im_end|>", pad="<|im_end|>"), lambda text: text + "<|im_end|>"),
    Family("chatml-nfc", lambda: wrap(byte_level(specials=IM, nfc=True), template=CHATML, eos="<|im_end|>"), lambda text: text + "<|im_end|>"),
    Family(
        "chatml-trimmed-offsets", lambda: wrap(byte_level(specials=IM, trim_offsets=True), template=CHATML, eos="<|im_end|>"), lambda text: text + "<|im_end|>"
    ),
    Family("chatml-marked", lambda: wrap(byte_level(specials=IM), template=MARKED, eos="<|im_end|>"), lambda text: text + "<|im_end|>"),
    Family(
        "llama3",
        lambda: wrap(byte_level(specials=HEADER, bos="<|begin_of_text|>"), template=LLAMA3, eos="<|eot_id|>", bos="<|begin_of_text|>"),
        lambda text: text.strip() + "<|eot_id|>",
    ),
    Family(
        "mistral",
        lambda: wrap(sentencepiece_like(specials=("<s>", "</s>"), bos="<s>"), template=MISTRAL, eos="</s>", bos="<s>"),
        lambda text: f" {text}</s>",
        takes_system=False,
    ),
    Family(
        "gemma",
        lambda: wrap(sentencepiece_like(specials=TURN, bos="<bos>"), template=GEMMA, eos="<eos>", bos="<bos>"),
        lambda text: text.strip() + "<end_of_turn>",
        takes_system=False,
    ),
    Family(
        "phi3",
        lambda: wrap(byte_level(specials=PHI, rstrip=True), template=PHI3, eos="<|endoftext|>"),
        lambda text: text + "<|end|>",
        after_last="<|endoftext|>",
    ),
)
