"""What an adapter's folder says of itself, read without torch: adapter_config.json as PEFT writes it, and our record of its base."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcore.spec.errors import Problem, SpecError

ADAPTER_WHERE = "method.adapter_name_or_path"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
EXPORT_RECORD = "ftlaunch_export.json"
"""Written into every export: its files, its base, and how well it loaded back."""
SETTINGS = ("r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFile:
    """An adapter on disk."""

    config: dict[str, Any]
    """adapter_config.json."""
    base_digest: str
    """Digest of the base it was trained on; empty when nothing tells."""

    @property
    def base_name(self) -> str:
        """The base model as the adapter names it; empty when it does not."""
        return str(self.config.get("base_model_name_or_path") or "")

    def settings(self) -> dict[str, Any]:
        """The fields of `method` that the adapter decides, by their names in the spec; those it does not tell are left out."""
        given = {key: self.config[key] for key in SETTINGS if key in self.config}
        for key in ("target_modules", "modules_to_save"):
            value = self.config.get(key)
            if isinstance(value, list):
                given[key] = tuple(sorted(str(item) for item in value))
        return given


def read_adapter_file(folder: Path) -> AdapterFile:
    """The LoRA adapter in `folder`. Raises SpecError naming everything that is missing, damaged or of another kind."""
    problems: list[Problem] = []
    config = _json_object(folder / ADAPTER_CONFIG)
    if config is None:
        problems.append(_problem(f"{folder} holds no {ADAPTER_CONFIG} that can be read"))
    elif config.get("peft_type") != "LORA":
        problems.append(_problem(f"{folder} holds an adapter of type {config.get('peft_type')}, and only LORA can be trained on"))
    elif config.get("rank_pattern") or config.get("alpha_pattern"):
        problems.append(_problem(f"{folder} holds an adapter with ranks or scales by layer (rank_pattern, alpha_pattern), which can't be trained on"))
    if not (folder / ADAPTER_WEIGHTS).is_file():
        others = ", which is a pickle: it could run code" if (folder / "adapter_model.bin").is_file() else ""
        problems.append(_problem(f"{folder} holds no {ADAPTER_WEIGHTS}{' but adapter_model.bin' if others else ''}{others}"))
    if problems or config is None:
        raise SpecError(problems)
    base = (_json_object(folder / EXPORT_RECORD) or {}).get("base_digest")
    return AdapterFile(config=config, base_digest=str(base or ""))


def _problem(what: str) -> Problem:
    return Problem(what=what, where=ADAPTER_WHERE, fix="name a folder that PEFT's save_pretrained or ftlaunch export --format adapter wrote")


def _json_object(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
