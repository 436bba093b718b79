"""Names that no adapter can have: PEFT makes an adapter's name a part of its parameters' names, and a key of torch's dictionaries of modules."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_OF_TORCH = (
    *("T_destination", "add_module", "apply", "bfloat16", "buffers", "call_super_init", "children", "clear", "compile", "copy", "cpu", "cuda", "double"),
    *("dump_patches", "eval", "extra_repr", "float", "forward", "fromkeys", "get", "get_buffer", "get_extra_state", "get_parameter", "get_submodule", "half"),
    *("ipu", "items", "keys", "load_state_dict", "modules", "mtia", "named_buffers", "named_children", "named_modules", "named_parameters", "parameters"),
    *("pop", "popitem", "register_backward_hook", "register_buffer", "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"),
    *("register_full_backward_pre_hook", "register_load_state_dict_post_hook", "register_load_state_dict_pre_hook", "register_module", "register_parameter"),
    *("register_state_dict_post_hook", "register_state_dict_pre_hook", "requires_grad_", "set_extra_state", "set_submodule", "setdefault"),
    *("share_memory", "smart_apply", "state_dict", "to", "to_empty", "train", "training", "type", "update", "values", "xpu", "zero_grad"),
)
_OF_MODELS = ("model", "base_model", "base_layer", "layers", "self_attn", "mlp", "lm_head", "weight", "bias", "modules_to_save", "original_module")
"""Parts of the names of most models' parameters; the rest of a model's own are met when it is built."""
TAKEN = frozenset((*_OF_TORCH, *_OF_MODELS))


def name_problem(name: str) -> tuple[str, str]:
    """What is wrong with the name of an adapter, and the fix; both empty when nothing is."""
    if not _NAME.fullmatch(name):
        fix = "use letters, digits, _ and -, at most 64 and no - at its beginning: it names a folder"
        return f"'{name}' is no name of an adapter", fix
    if name in TAKEN or name.isdigit() or name.startswith(("_", "lora_")):
        return f"an adapter can't be called {name}: torch or PEFT gives the name another meaning", f"choose another name, such as adapter_{name.strip('_')}"
    return "", ""
