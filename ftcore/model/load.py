"""Load the base model: whole, partitioned over the ranks (ZeRO stage 3), or quantised."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from ftcore import attention
from ftcore.data.prepared import ModelSource
from ftcore.model.quantise import keep_cpu_weights_in_place, quantisation
from ftcore.spec.errors import SpecError
from ftcore.spec.sections import MethodSection, ModelSection
from ftcore.weight_files import tensors_that_do_not_fit

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@contextmanager
def partitioned_loading(ds_config: Path) -> Iterator[None]:
    """Inside, from_pretrained partitions the weights as it reads them when `ds_config` is of ZeRO stage 3.

    transformers looks for a live HfDeepSpeedConfig object; one that nobody holds is gone at once, and
    every rank would then load the whole model without a word.
    """
    config = json.loads(ds_config.read_text(encoding="utf-8"))
    if config["zero_optimization"]["stage"] != 3:
        yield
        return
    from transformers.integrations import HfDeepSpeedConfig

    held = HfDeepSpeedConfig(config)
    try:
        yield
    finally:
        del held


def load_base(model: ModelSection, source: ModelSource, quantised: MethodSection | None = None, *, layout: str = "packed") -> PreTrainedModel:
    """The pretrained model in `model.dtype`, without a cache and, for packed rows, with attention that keeps samples apart.

    With `quantised`, a qlora method, its linear layers but the head are held in that method's bits; the weights are
    quantised one by one as they are read. Raises SpecError when the files lack a weight of the model, or hold one of another shape, and for packed rows
    when the model takes no attention but its own.
    """
    implementation: str | None = model.attn_implementation
    if implementation == "sdpa":
        # Padded rows need nothing of ours: the model's own attention serves, also in a model that knows no other.
        implementation = attention.NAME if layout == "packed" else None
    dtype = DTYPES[str(model.dtype)]
    try:
        base, info = AutoModelForCausalLM.from_pretrained(
            source.path,
            dtype=dtype,
            attn_implementation=implementation,
            trust_remote_code=source.trust_remote_code,
            quantization_config=quantisation(quantised, dtype) if quantised else None,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported in `info` then, with the names, and refused below
        )
    except KeyError as error:
        if error.args != (attention.NAME,):
            raise
        # Families that look their attention up in a table of their own.
        what = f"{source.name} takes no attention but its own, which can't keep samples of one row apart"
        raise SpecError(what, where="batch.layout", fix=attention.USE_PADDED) from error
    require_all_weights(info, source)
    if quantised:
        keep_cpu_weights_in_place(base)
    base.config.use_cache = False
    return base


def require_all_weights(info: dict[str, Any], source: ModelSource) -> None:
    """Raises SpecError when transformers' loading information names weights that were missing or of another shape."""
    wrong = tensors_that_do_not_fit(info)
    if wrong:
        raise SpecError(f"{source.name} is not whole: {wrong}", where="model.model_name_or_path", fix="download or copy the model again")
