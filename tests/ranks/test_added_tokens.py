"""A base whose vocabulary was enlarged before training: its adapter loads in one call, new tokens and all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from ftcore import export
from ftcore.data.cache import Counts, write_samples
from ftcore.data.prepared import ModelSource, PreparedSet
from ftcore.prepare import check_fits
from ftcore.spec.errors import DataError
from ftcore.spec.run_dir import RunDir
from tests.ranks.pool import RankPool
from tests.ranks.small_model import VOCABULARY
from tests.ranks.specs import make_spec, with_section
from tests.ranks.test_evaluate_export import train_and_score, write_prepared
from tests.ranks.test_export_forms import logits_of

Small = tuple[ModelSource, str]
ADDED = ("<think>", "</think>")


@pytest.fixture(scope="module")
def enlarged(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Small:
    """The small model with two more tokens, and rows that hold both."""
    folder = tmp_path_factory.mktemp("enlarged")
    tokenizer = AutoTokenizer.from_pretrained(small[0].path)
    model = AutoModelForCausalLM.from_pretrained(small[0].path, dtype=torch.float32)
    assert tokenizer.add_tokens(list(ADDED)) == 2
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    random = np.random.default_rng(3)
    ids = [np.concatenate([random.integers(3, VOCABULARY, 9), [VOCABULARY, 5 + row, VOCABULARY + 1]]).astype(np.int32) for row in range(16)]
    counts = Counts(rows=16, tokens=16 * 12, supervised_tokens=16 * 8)
    write_samples(folder / "samples.arrow", ids, [[(4, 12)]] * 16, list(range(1, 17)), counts)
    source = ModelSource(path=str(folder / "model"), revision="", digest="enlarged", name=str(folder / "model"), trust_remote_code=False)
    return source, str(folder / "samples.arrow")


@pytest.mark.parametrize(("stage", "whole"), [(3, ()), (2, ("embed_tokens",))])
def test_an_adapter_of_an_enlarged_base_loads_in_one_call(stage: int, whole: tuple[str, ...], pool: RankPool, enlarged: Small, tmp_path: Path) -> None:
    """F16: the rows of the new tokens come from the base, or from the adapter where the embedding is trained whole. G03: resized before it is partitioned."""
    source, samples = enlarged
    spec = with_section(make_spec(stage, method="lora", updates=4), "method", lora_dropout=0.0, modules_to_save=whole)
    expected = pool.run(train_and_score, 2, str(tmp_path / "run"), spec, source, samples, logs=tmp_path / "logs")[0]
    write_prepared(tmp_path / "run", source, samples)
    out = tmp_path / "out"
    export.main(RunDir(tmp_path / "run"), out, "auto")
    model = AutoPeftModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    assert torch.allclose(logits_of(model, samples), expected, rtol=1e-4, atol=1e-4)
    assert AutoTokenizer.from_pretrained(out).convert_tokens_to_ids(list(ADDED)) == [VOCABULARY, VOCABULARY + 1]
    record = json.loads((out / "ftlaunch_export.json").read_text())
    assert record["vocab_size"] == model.get_input_embeddings().weight.shape[0] == expected.shape[1] == VOCABULARY + 2
    # The policy on embeddings is told too.
    assert f"{VOCABULARY + 2} entries, as in the base: ftlaunch does not resize embeddings" in (out / "README.md").read_text()


def test_a_token_that_the_base_has_no_row_for(small: Small, enlarged: Small) -> None:
    """G03: nothing is resized behind the user's back, partitioned or not: refused before any rank exists."""
    prepared = PreparedSet(arrow=enlarged[1], samples=16, rows=16, tokens=16 * 12, supervised_tokens=16 * 8)
    with pytest.raises(DataError, match=f"makes token id {VOCABULARY + 1}, and the model's vocab_size is {VOCABULARY}"):
        check_fits("data.train", prepared, small[0])
    check_fits("data.train", prepared, enlarged[0])
