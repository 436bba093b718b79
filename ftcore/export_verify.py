"""The proof, by reading an export back, that it is what was trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from peft import PeftModel
from peft.utils.save_and_load import get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from ftcore.export_forms import Trained
from ftcore.model.adapters import put_on
from ftcore.model.quantise import keep_cpu_weights_in_place, quantisation
from ftcore.spec.adapter_file import ADAPTER_WEIGHTS
from ftcore.spec.errors import CheckpointError
from ftcore.weight_files import tensors_that_do_not_fit

TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest difference of a logit, as a share of the largest logit (of 1 if that is smaller). Tensors are compared bit by bit:
this is for other kernels of attention, and for a merge, which rounds once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """How near the files come to the model that was trained; largest differences of a logit."""

    reload: float
    """Files read back, against the model that was to be written."""
    quantisation: float | None
    """qlora: the same adapter on the base as it was and on the quantised one that was trained with; None without."""


def verify_adapter(trained: Trained, model: torch.nn.Module, name: str, folder: Path, expected: torch.Tensor) -> Fidelity:
    """Reads the adapter in `folder` back onto a fresh base, the quantised one too. `expected` are the trained model's logits.

    Raises CheckpointError when a tensor is missing, empty or another, or the logits differ.
    """
    stored = load_file(folder / ADAPTER_WEIGHTS)
    require_whole(differences(get_peft_model_state_dict(model, adapter_name=name), stored), folder)
    loaded = _on_fresh_base(trained, folder, quantised=trained.is_quantised)
    require_whole(differences(stored, get_peft_model_state_dict(loaded)), folder)
    gap = largest_difference(logits_of(loaded), expected)
    require_equal(gap, expected, trained.dtype, folder)
    if not trained.is_quantised:
        return Fidelity(reload=gap, quantisation=None)
    del loaded
    plain = logits_of(_on_fresh_base(trained, folder, quantised=False))
    return Fidelity(reload=gap, quantisation=largest_difference(plain, expected))


def _on_fresh_base(trained: Trained, folder: Path, *, quantised: bool) -> PeftModel:
    source = trained.source
    config = quantisation(trained.spec.method, trained.dtype) if quantised else None
    base = AutoModelForCausalLM.from_pretrained(source.path, dtype=trained.dtype, trust_remote_code=source.trust_remote_code, quantization_config=config)
    if quantised:
        keep_cpu_weights_in_place(base)
    return put_on(base, folder, trained.spec.train.precision).eval()


def verify_whole(trained: Trained, model: PreTrainedModel, folder: Path, expected: torch.Tensor, as_trained: torch.Tensor) -> Fidelity:
    """Reads the model in `folder` back. `expected` are the logits before it was merged, `as_trained` those on the quantised base.

    Raises CheckpointError when a tensor is missing, empty or another, or the logits differ from those expected.
    """
    loaded, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=trained.dtype, trust_remote_code=trained.source.trust_remote_code, output_loading_info=True, ignore_mismatched_sizes=True
    )
    unfit = tensors_that_do_not_fit(info)
    require_whole([*([unfit] if unfit else []), *differences(model.state_dict(), loaded.state_dict())], folder)
    logits = logits_of(loaded.eval())
    gap = largest_difference(logits, expected)
    require_equal(gap, expected, trained.dtype, folder)
    return Fidelity(reload=gap, quantisation=largest_difference(logits, as_trained) if trained.is_quantised else None)


def differences(wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> list[str]:
    """What is wrong with the tensors `found`, a sentence each: missing, unknown, empty, or other bits than `wanted`."""
    wrong = [f"{name} is missing" for name in wanted if name not in found] + [f"{name} is unknown" for name in found if name not in wanted]
    for name, value in found.items():
        if value.numel() == 0:
            wrong.append(f"{name} is empty")
        elif name in wanted and not (wanted[name].dtype == value.dtype and torch.equal(wanted[name], value)):
            wrong.append(f"{name} has other values")
    return wrong


def logits_of(model: torch.nn.Module) -> torch.Tensor:
    """Logits [1, T, V] of a short row, fp32."""
    ids = torch.arange(3, 35).unsqueeze(0) % vocabulary_of(model)
    with torch.no_grad():
        logits: torch.Tensor = model(ids, use_cache=False).logits.float()
    return logits


def vocabulary_of(model: Any) -> int:
    """Entries of the vocabulary that the model has embeddings for."""
    return int(model.config.get_text_config().vocab_size)


def largest_difference(first: torch.Tensor, second: torch.Tensor) -> float:
    """Largest absolute difference of two tensors of one shape."""
    return float((first - second).abs().max())


def require_whole(wrong: list[str], folder: Path) -> None:
    """Raises CheckpointError when something is `wrong` with the tensors read back."""
    if wrong:
        _refuse(f"{'; '.join(wrong[:3])}{f' and {len(wrong) - 3} more' if len(wrong) > 3 else ''}", folder)


def require_equal(gap: float, expected: torch.Tensor, dtype: torch.dtype, folder: Path) -> None:
    """Raises CheckpointError when the logits differ by more than rounding explains."""
    limit = TOLERANCES[dtype] * max(1.0, float(expected.abs().max()))
    if not gap <= limit:
        _refuse(f"largest logit difference {gap:.3g}, rounding explains {limit:.3g}", folder)


def _refuse(what: str, folder: Path) -> NoReturn:
    raise CheckpointError(f"the export does not load back as it was: {what}", where=str(folder), fix="keep the run folder and report it")
