"""What an export holds: adapters alone, or a whole model."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors.torch import load_file
from transformers import AutoTokenizer, PreTrainedModel

from ftcore.checkpoint.find import Found
from ftcore.checkpoint.layout import BUFFERS
from ftcore.checkpoint.read import StateReader
from ftcore.data.prepared import ModelSource
from ftcore.data.templates.chosen import set_template
from ftcore.model.adapters import SINGLE
from ftcore.model.build import attach_method
from ftcore.model.load import DTYPES, load_base
from ftcore.questions import stop_ids
from ftcore.spec.adapter_file import ADAPTER_CONFIG
from ftcore.spec.errors import CheckpointError, SpecError
from ftcore.spec.sections import MethodSection, Spec

ADAPTER, MERGED, HF = "adapter", "merged", "hf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A checkpoint, and what is needed to make a model of it."""

    spec: Spec
    source: ModelSource
    chat_template: str = ""
    """What it was trained with; empty: the tokenizer's own."""
    found: Found

    @property
    def is_quantised(self) -> bool:
        return self.spec.method.type == "qlora"

    @property
    def dtype(self) -> torch.dtype:
        """The base weights'."""
        return DTYPES[str(self.spec.model.dtype)]


def choose_form(form: str, method: str) -> str:
    """adapter for lora and qlora, and hf for full, when `form` is auto. Raises SpecError when it can't be had."""
    if form == "auto":
        return HF if method == "full" else ADAPTER
    possible = (HF,) if method == "full" else (ADAPTER, MERGED, HF)
    if form not in possible:
        raise SpecError(f"a run with method {method} has no {form} form", where="--format", fix=f"use {' or '.join(possible)}")
    return MERGED if form == HF and method != "full" else form


def choose_adapters(form: str, method: MethodSection, asked: str) -> tuple[str, ...]:
    """Names of the adapters to write, as PEFT knows them; () for a full model.

    Raises SpecError when the run has none of the name `asked`, or one must be named since only one can be merged.
    """
    names = tuple(method.adapters)
    if asked and asked not in names:
        fix = f"give one of {', '.join(names)}" if names else "leave --adapter out"
        raise SpecError(f"the run has no adapter '{asked}'{'' if names else ': its adapter has no name'}", where="--adapter", fix=fix)
    if asked:
        return (asked,)
    if form == MERGED and len(names) > 1:
        raise SpecError(f"the run has {len(names)} adapters, and only one can be merged", where="--adapter", fix=f"give one of {', '.join(names)}")
    return () if form == HF else names or (SINGLE,)


def trained_model(trained: Trained, *, quantised: bool = True) -> torch.nn.Module:
    """The base model with the checkpoint's parameters in place, on the CPU, in evaluation mode.

    A qlora run's base is held in its bits, unless not `quantised`. Raises CheckpointError for another base.
    """
    spec, found = trained.spec, trained.found
    if found.manifest.base["digest"] != trained.source.digest:
        raise CheckpointError("the base model has changed since the checkpoint was written", where=trained.source.path, fix="put it back as it was")
    base = load_base(spec.model, trained.source, spec.method if trained.is_quantised and quantised else None, layout=spec.batch.layout)
    # All values come from the checkpoint: an adapter that the run started from may be gone by now.
    model = attach_method(base, replace(spec.method, adapter_name_or_path=""), replace(spec.train, gradient_checkpointing="none"))
    reader = StateReader.open(found.path, found.manifest)
    parameters, buffers, kept = dict(model.named_parameters()), dict(model.named_buffers()), model.state_dict().keys()
    with torch.no_grad():
        for name in found.manifest.parameters:
            parameters[name].copy_(reader.parameter(name))
        for name, value in load_file(found.path / BUFFERS).items():
            if name in buffers and name in kept:
                buffers[name].copy_(value)
    return model.eval()


def save_adapter(model: Any, name: str, folder: Path, trained: Trained) -> None:
    """Writes adapter `name` of a PEFT model, with the tokenizer and its chat template, to `folder`, which PeftModel.from_pretrained reads."""
    model.peft_config[name].base_model_name_or_path = trained.source.path
    scratch = folder.with_name(f"{folder.name}.saving")
    model.save_pretrained(scratch, selected_adapters=[name])
    # PEFT writes an adapter with a name of its own to a folder of that name.
    (scratch if name == SINGLE else scratch / name).rename(folder)
    shutil.rmtree(scratch, ignore_errors=True)
    tokenizer_of(trained).save_pretrained(folder)


def tokenizer_of(trained: Trained) -> Any:
    """The base's tokenizer with the chat template that was trained with."""
    tokenizer = AutoTokenizer.from_pretrained(trained.source.path, trust_remote_code=trained.source.trust_remote_code)
    set_template(tokenizer, trained.chat_template or None)
    return tokenizer


def name_base(folder: Path, source: ModelSource) -> None:
    """Makes the adapter in `folder` name a hub model as the hub does, with its commit: the path of a download is this machine's."""
    path = folder / ADAPTER_CONFIG
    if source.revision and path.is_file():
        config = {**json.loads(path.read_text(encoding="utf-8")), "base_model_name_or_path": source.name, "revision": source.revision}
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def save_whole(model: PreTrainedModel, folder: Path, trained: Trained) -> None:
    """Writes safetensors, config and tokenizer (with its chat template) to `folder`; generation stops on the ends that were trained."""
    tokenizer = tokenizer_of(trained)
    model.config._attn_implementation = "sdpa"
    model.config.use_cache = True
    generation: Any = model.generation_config
    if generation is not None:
        own = generation.eos_token_id
        stops = stop_ids(tokenizer, own, chat=bool(tokenizer.chat_template))
        if set(stops) != set(own if isinstance(own, list) else [own]):
            generation.eos_token_id = stops if len(stops) > 1 else stops[0]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def merge(model: Any, name: str) -> PreTrainedModel:
    """The base of a PEFT model with adapter `name` merged into it, in place.

    A head that shares the embedding's weight gets its own where one of the two was adapted.
    """
    base: PreTrainedModel = model.get_base_model()
    _untie_where_adapted(base)
    merged: PreTrainedModel = model.merge_and_unload(adapter_names=[name])
    return merged


def _untie_where_adapted(base: PreTrainedModel) -> None:
    """Before a merge, which would change the weight of both; the configuration then says so, else a reload would tie them again."""
    embedding, head = base.get_input_embeddings(), base.get_output_embeddings()
    if not isinstance(head, torch.nn.Module) or not any(isinstance(each, (BaseTunerLayer, AuxiliaryTrainingWrapper)) for each in (embedding, head)):
        return
    first, second = _inside(embedding), _inside(head)
    if first.weight is second.weight:
        second.weight = torch.nn.Parameter(second.weight.detach().clone(), requires_grad=False)
        for config in (base.config, base.config.get_text_config()):
            config.tie_word_embeddings = False


def _inside(module: Any) -> Any:
    """The base's own layer in what PEFT put around it."""
    if isinstance(module, BaseTunerLayer):
        return module.get_base_layer()
    return module.original_module if isinstance(module, AuxiliaryTrainingWrapper) else module
