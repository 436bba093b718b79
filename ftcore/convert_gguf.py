"""GGUF file -> model folder in Hugging Face's format. Done once: reading GGUF takes some 20 s, safetensors 2 s."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from ftcore.data.lock import new_folder
from ftcore.spec.errors import SpecError
from ftcore.spec.events import emit

WHERE = "model.model_name_or_path"
DIGITS_APART = "smollm"
"""The value of tokenizer.ggml.pre whose pre-tokenizer splits numbers into digits before it splits words; transformers leaves that out."""


def convert_gguf(path: Path, folder: Path) -> None:
    """Writes model (float32, as dequantised) and tokenizer of the GGUF file to `folder`: aside, then renamed.

    Raises SpecError when the file is no GGUF file that transformers can read, or the package gguf is missing.
    """
    if importlib.util.find_spec("gguf") is None:
        raise SpecError("reading GGUF files needs the package gguf", where=WHERE, fix="pip install 'ftlaunch[gguf]'")
    emit("progress", stage="prepare", done=0, total=0, text=f"converting {path.name} (once, some 20 s)")
    with new_folder(folder) as aside:
        _write(path, aside)


def _write(path: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place, name = str(path.parent), path.name
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name)
        model: Any = AutoModelForCausalLM.from_pretrained(place, gguf_file=name, dtype=torch.float32)
    except Exception as error:  # the reader raises whatever a broken file leads it to
        raise SpecError(
            f"can't read {path} as a GGUF model: {type(error).__name__}: {error}", where=WHERE, fix="name a GGUF file of a causal language model"
        ) from error
    _split_digits(tokenizer, path)
    # The weights are plain tensors now; left in place, these two make save_pretrained refuse.
    model.hf_quantizer = None
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _split_digits(tokenizer: Any, path: Path) -> None:
    from tokenizers import pre_tokenizers

    if _pre_tokenizer_name(path) != DIGITS_APART:
        return
    backend = tokenizer.backend_tokenizer
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])


def _pre_tokenizer_name(path: Path) -> str:
    from gguf import GGUFReader

    field = GGUFReader(path).get_field("tokenizer.ggml.pre")
    return "" if field is None else str(field.contents())
