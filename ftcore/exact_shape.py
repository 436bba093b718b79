"""Every parameter of a model of any architecture: built without memory on torch's meta device, and listed."""

from __future__ import annotations

import re
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ftcore.spec.builtin_models import TINY_LLAMA, TINY_LLAMA_CONFIG

NUMBER = re.compile(r"\.(\d+)\.")
ATTENTION = re.compile(r"attn|attention")


def read_config(path: str, revision: str, *, with_code: bool, gguf_file: str = "") -> PretrainedConfig:
    """A model's configuration; its weights are not read. Raises what transformers raises."""
    if path == TINY_LLAMA:
        return AutoConfig.for_model(**TINY_LLAMA_CONFIG)  # type: ignore[no-any-return]
    options: dict[str, Any] = {"gguf_file": gguf_file} if gguf_file else {"revision": revision, "trust_remote_code": with_code}
    return AutoConfig.from_pretrained(path, **options)  # type: ignore[no-any-return]


def shape_facts(config: PretrainedConfig, *, with_code: bool = False) -> dict[str, Any]:
    """Sizes and parameters of the model that a configuration describes. Raises what transformers raises."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=with_code)
    text = config.get_text_config()
    tensors = _tensors(model)
    layers = max((len(tensor["layers"]) for tensor in tensors if tensor["layers"]), default=1)
    hidden = int(text.hidden_size)
    heads = int(getattr(text, "num_attention_heads", None) or 1)
    experts = int(getattr(text, "num_local_experts", None) or getattr(text, "num_experts", None) or 0)
    return {
        "family": str(config.model_type),
        "layers": int(getattr(text, "num_hidden_layers", None) or layers),
        "hidden": hidden,
        "intermediate": int(getattr(text, "intermediate_size", None) or 4 * hidden),
        "heads": heads,
        "kv_heads": int(getattr(text, "num_key_value_heads", None) or heads),
        "head_dim": int(getattr(text, "head_dim", None) or hidden // heads),
        "vocab": int(text.vocab_size),
        "tied": bool(getattr(text, "tie_word_embeddings", False)),
        "experts": experts,
        "experts_per_token": min(int(getattr(text, "num_experts_per_tok", None) or 0), experts),
        "activation": str(getattr(text, "hidden_act", None) or getattr(text, "hidden_activation", None) or "silu"),
        "context": int(getattr(text, "max_position_embeddings", None) or 0),
        "tensors": tensors,
    }


def _tensors(model: PreTrainedModel) -> list[dict[str, Any]]:
    """The parameters; those of one name in several layers together, with the number of the layer written `{}`."""
    head = model.get_output_embeddings()
    found: dict[tuple[str, tuple[int, ...], str, str], list[int]] = {}
    holders: dict[int, torch.nn.Module] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            # A tied head's matrix is the embedding's.
            holders.setdefault(id(parameter), module)
    for name, parameter in model.named_parameters():
        number = NUMBER.search(name)
        whole = name if number is None else f"{name[: number.start(1)]}{{}}{name[number.end(1) :]}"
        holder = holders[id(parameter)]
        kind, held = _kind(name, parameter, holder, is_head=holder is head)
        key = (whole, tuple(parameter.shape), kind, held)
        found.setdefault(key, []).extend([] if number is None else [int(number.group(1))])
    return [{"name": name, "shape": list(shape), "kind": kind, "module": held, "layers": layers or None} for (name, shape, kind, held), layers in found.items()]


def _kind(name: str, parameter: torch.nn.Parameter, module: torch.nn.Module, *, is_head: bool) -> tuple[str, str]:
    """(kind, what holds it) as launcher.memory.shape has them."""
    held = "linear" if isinstance(module, torch.nn.Linear) else "conv1d" if isinstance(module, Conv1D) else "other"
    if isinstance(module, torch.nn.Embedding):
        return "embedding", "embedding"
    if is_head:
        return ("head" if parameter.dim() > 1 else "bias"), held
    if "norm" in type(module).__name__.lower():
        return "norm", "norm"
    if "router" in type(module).__name__.lower():
        return "router", "router"
    if parameter.dim() == 3 and "expert" in name:
        return "expert", "experts"
    if name.endswith("bias"):
        return "bias", held
    if held == "other":
        return "other", held
    return ("attention" if ATTENTION.search(name) else "mlp"), held
