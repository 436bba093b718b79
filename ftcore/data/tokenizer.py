"""Loads a model folder's tokenizer, and says what the cached samples depend on."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ftcore.data.templates.chosen import choose_template
from ftcore.data.templates.named import template_text
from ftcore.spec.errors import DataError, SpecError

TOKENIZER_FILES = ("*.json", "*.jinja", "additional_chat_templates/*.jinja", "*.model", "*.tiktoken", "vocab.txt", "merges.txt", "tokenization_*.py")
"""What a tokenizer may be loaded from; config.json among them, since it can name the tokenizer's class; templates of other names, as for rows with tools."""
NOT_TOKENIZER = ("*.index.json", "generation_config.json")


def load_tokenizer(path: str, *, trust_remote_code: bool = False, chat_template: str = "") -> Any:
    """The transformers tokenizer of a model folder, with the chat template that `data.chat_template` names; it gives character offsets.

    Raises SpecError when it or the template can't be loaded or don't go together, DataError when it has no offsets (a slow tokenizer).
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        fix = (
            "set model.trust_remote_code: true if you trust the folder's code"
            if "trust_remote_code" in str(error)
            else "name a folder with a tokenizer that transformers can load"
        )
        raise SpecError(f"can't load the tokenizer of {path}: {reason}", where="model.model_name_or_path", fix=fix) from error
    if not tokenizer.is_fast:
        raise DataError(
            f"{type(tokenizer).__name__} gives no character offsets, so the supervised tokens can't be found",
            where="model.model_name_or_path",
            fix="put a tokenizer.json (a fast tokenizer) into the model folder",
        )
    choose_template(tokenizer, chat_template)
    return tokenizer


def tokenizer_digest(path: str) -> str:
    """sha256 over the names and bytes of the tokenizer's files (chat template included) and the versions that read them."""
    digest = hashlib.sha256(f"transformers {version('transformers')} tokenizers {version('tokenizers')}".encode())
    for file in tokenizer_files(path):
        digest.update(f"\0{file.relative_to(path)}\0{file.stat().st_size}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def writes_date(path: str, chat_template: str = "") -> bool:
    """Whether the folder's chat template, or the one that `data.chat_template` names, puts the date of rendering into the text."""
    chosen = template_text(chat_template)
    if chosen is not None:
        return "strftime_now" in chosen
    return any(b"strftime_now" in file.read_bytes() for file in tokenizer_files(path) if file.suffix == ".jinja" or file.name == "tokenizer_config.json")


def tokenizer_files(path: str) -> list[Path]:
    """The files of a model folder that its tokenizer may be loaded from, in order."""
    folder = Path(path)
    skipped = {file for pattern in NOT_TOKENIZER for file in folder.glob(pattern)}
    return sorted({file for pattern in TOKENIZER_FILES for file in folder.glob(pattern)} - skipped)
