"""Which decoder layers of a model see a window of tokens only, by config.json and what transformers' configuration classes make of it."""

from __future__ import annotations

from launcher.memory.shape_config import Config

DEFAULTS = {"mistral": 4096, "gemma2": 4096, "gemma3_text": 4096, "olmo3": 4096}
"""Family -> window where config.json does not say one."""
FULL_EVERY = {"gemma2": 2, "gemma3_text": 6, "olmo3": 4}
"""Family -> of so many layers the last one sees all."""
EVERYWHERE = ("mistral", "mixtral", "phi3", "starcoder2")
"""Families whose window holds for each layer."""
SWITCHED = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
"""Families that have a window only where use_sliding_window is set, from layer max_window_layers on."""


def windowed_layers(config: Config, family: str, layers: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """The window in tokens, and the numbers of the layers that have it; (0, ()) where none has."""
    given = "sliding_window" in config.data
    window = config.size("sliding_window", default=0 if given else DEFAULTS.get(family, 0), least=0)
    if not window or (family in SWITCHED and not config.flag("use_sliding_window", False)):
        return 0, ()
    if family in EVERYWHERE:
        return window, layers
    if family not in FULL_EVERY and family not in SWITCHED:
        return 0, ()
    kinds = config.data.get("layer_types")
    if isinstance(kinds, list):
        return window, tuple(layer for layer in layers if layer < len(kinds) and kinds[layer] == "sliding_attention")
    if family in SWITCHED:
        first = config.size("max_window_layers", default=28, least=0)
        return window, tuple(layer for layer in layers if layer >= first)
    every = config.size("sliding_window_pattern", default=FULL_EVERY[family])
    return window, tuple(layer for layer in layers if (layer + 1) % every)
