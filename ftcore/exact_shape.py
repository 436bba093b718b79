"""Every parameter of a model of any architecture: built without memory on torch's meta device, listed, and printed as JSON.

`python -m ftcore.exact_shape FOLDER_OR_HUB_ID REVISION CODE [GGUF_FILE]`, CODE 1 to let a repository's own code run. For `ftlaunch plan --exact`.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

NUMBER = re.compile(r"\.(\d+)\.")
ATTENTION = re.compile(r"attn|attention")
PRINTED = "exact shape: "
"""What the line with the JSON begins with."""


def model_facts(path: str, revision: str, *, with_code: bool, gguf_file: str = "") -> dict[str, Any]:
    """Sizes and parameters of the model that a configuration describes; its weights are not read. Raises what transformers raises."""
    options: dict[str, Any] = {"gguf_file": gguf_file} if gguf_file else {"revision": revision, "trust_remote_code": with_code}
    config = AutoConfig.from_pretrained(path, **options)
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


def main(arguments: list[str]) -> int:
    """Prints the facts of the model that the command line names; status 1, with the reason on stderr, when it can't be built."""
    path, revision, code, *gguf = arguments
    try:
        facts = model_facts(path, revision, with_code=code == "1", gguf_file=gguf[0] if gguf else "")
    except Exception as error:  # noqa: BLE001  whatever a configuration or a repository's code leads to
        first = str(error).strip().partition("\n")[0]
        sys.stderr.write(f"{type(error).__name__}: {first}\n")
        return 1
    sys.stdout.write(f"{PRINTED}{json.dumps(facts)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
