"""Check the base model's files and the method's targets before any rank exists, on a model without memory (torch's meta device)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from ftcore.data.prepared import ModelSource
from ftcore.source import weight_files
from ftcore.spec.adapter_file import read_adapter_file
from ftcore.spec.errors import SpecError
from ftcore.spec.events import emit
from ftcore.spec.run_dir import write_atomic
from ftcore.spec.sections import Spec
from ftcore.weight_files import weight_shapes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LIBRARIES = ("torch", "transformers", "peft")


def check_base(spec: Spec, source: ModelSource, cache_dir: Path) -> None:
    """Raises SpecError when weights are missing or of another shape than config.json says, or the method's targets don't fit the model.

    Costs some seconds, mostly imports; that a base and a method fit is remembered in the cache.
    """
    warn_of_another_base(spec, source)
    asked = [source.digest, asdict(spec.method), _adapter_state(spec), asdict(spec.optimizer)["parameter_groups"], spec.train.gradient_checkpointing]
    asked += [spec.train.keep_in_fp32, spec.zero.overrides]
    asked.append({name: version(name) for name in LIBRARIES})
    memory = cache_dir / "checked" / hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]
    if memory.exists():
        return
    import torch

    from ftcore.model.build import attach_method
    from ftcore.model.groups import freeze_matching
    from ftcore.model.kept_buffers import check_kept_buffers
    from ftcore.model.named_leaves import check_named_leaves

    base = load_without_memory(source)
    check_kept_buffers(base, spec.train.keep_in_fp32)
    # PEFT makes a second adapter on the CPU, and DoRA would then read the base's weights.
    with torch.device("meta"):
        model = attach_method(base, spec.method, spec.train)
    check_named_leaves(model, spec.zero.overrides)
    freeze_matching(model, spec.optimizer)
    write_atomic(memory, source.name + "\n")


def warn_of_another_base(spec: Spec, source: ModelSource) -> None:
    """Tells the user when the adapter to start from names, or was recorded with, another base model. Raises SpecError when it can't be read."""
    if not spec.method.adapter_name_or_path:
        return
    folder = Path(spec.method.adapter_name_or_path).expanduser()
    found = read_adapter_file(folder)
    is_other = found.base_digest != source.digest if found.base_digest else found.base_name not in ("", source.name, source.path)
    if is_other:
        emit("note", text=f"the adapter in {folder} was made for {found.base_name or 'another base'}, and is now trained on {source.name}")


def _adapter_state(spec: Spec) -> list[object]:
    """What tells one state of the adapter to start from, and of its files, from another."""
    if not spec.method.adapter_name_or_path:
        return []
    files = sorted(Path(spec.method.adapter_name_or_path).expanduser().rglob("adapter_*"))
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def load_without_memory(source: ModelSource) -> PreTrainedModel:
    """The base model on the meta device, taken through transformers' own loading, which knows the renamed and the tied weights.

    Raises SpecError when the files can't be read, don't fit config.json, or transformers can't build the model.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from ftcore.model.load import require_all_weights

    shapes = weight_shapes(weight_files(Path(source.path)))
    try:
        config = AutoConfig.from_pretrained(source.path, trust_remote_code=source.trust_remote_code)
        with torch.device("meta"):
            kind = type(AutoModelForCausalLM.from_config(config, trust_remote_code=source.trust_remote_code))
        state = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        model, info = kind.from_pretrained(None, config=config, state_dict=state, device_map="meta", output_loading_info=True, ignore_mismatched_sizes=True)
    except Exception as error:  # transformers and the model's own code raise whatever a wrong config.json leads them to
        raise SpecError(
            f"transformers can't build {source.name}: {type(error).__name__}: {error}",
            where="model.model_name_or_path",
            fix="name a causal language model; one with code of its own needs model.trust_remote_code",
        ) from error
    require_all_weights(info, source)
    base: PreTrainedModel = model
    return base
