"""Write the trained model in Hugging Face's format: `python -m ftcore.export RUN --to DIR [--format auto|adapter|merged|hf]`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ftcore.checkpoint.find import Found, find_newest_whole
from ftcore.checkpoint.read import StateReader
from ftcore.data.prepared import Prepared, load_prepared
from ftcore.model import DTYPES, attach_method, load_base
from ftcore.process import run_main
from ftcore.spec.errors import CheckpointError, SpecError
from ftcore.spec.events import emit
from ftcore.spec.resolved import ResolvedSpec, load_resolved
from ftcore.spec.run_dir import RunDir

RECORD = "ftlaunch_export.json"
"""Marks a folder as an export, and says how well it loaded back."""
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Largest difference of a logit between the model in memory and its files read back; merging an adapter rounds once more."""


def main(run_dir: RunDir, to: Path, form: str) -> None:
    """Exports the newest whole checkpoint of `run_dir` to `to`, and checks it by loading it back.

    Raises CheckpointError when there is no checkpoint or the files read back give other logits, SpecError
    when the form does not fit the run's method.
    """
    resolved, prepared = load_resolved(run_dir.resolved), load_prepared(run_dir.prepared)
    form = choose_form(form, resolved.spec.method.type)
    require_replaceable(to)
    search = find_newest_whole(run_dir.checkpoints)
    if search.found is None:
        reasons = "; ".join(search.skipped) or "none was saved"
        raise CheckpointError(f"no whole checkpoint to export: {reasons}", where=str(run_dir.checkpoints), fix=f"ftlaunch --resume {run_dir.path}")
    emit("progress", stage="export", done=0, total=1, text=f"exporting {search.found.path.name} to {to}")
    model = trained_model(resolved, prepared, search.found)
    aside = to.with_name(f".{to.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    save(model, aside, form, prepared)
    verify(model, aside, form, prepared, resolved)
    if to.exists():
        shutil.rmtree(to)
    os.rename(aside, to)
    emit("exported", path=str(to), form=form, update=search.found.manifest.update)


def require_replaceable(to: Path) -> None:
    """Raises SpecError when `to` holds anything but an earlier export: nothing of the user's is overwritten."""
    if to.exists() and not (to / RECORD).is_file() and (not to.is_dir() or any(to.iterdir())):
        raise SpecError(f"{to} exists and is not an export of ftlaunch", where="--to", fix="name a new or empty folder")


def choose_form(form: str, method: str) -> str:
    """adapter for lora and hf for full when `form` is auto. Raises SpecError when it can't be had."""
    if form == "auto":
        return "adapter" if method == "lora" else "hf"
    possible = {"lora": ("adapter", "merged", "hf"), "full": ("hf",)}[method]
    if form not in possible:
        raise SpecError(f"a run with method {method} has no {form} form", where="--format", fix=f"use {' or '.join(possible)}")
    return "merged" if form == "hf" and method == "lora" else form


def trained_model(resolved: ResolvedSpec, prepared: Prepared, found: Found) -> torch.nn.Module:
    """The base model with the checkpoint's parameters in place, on the CPU, in evaluation mode. Raises CheckpointError for another base."""
    if found.manifest.base["digest"] != prepared.model.digest:
        raise CheckpointError("the base model has changed since the checkpoint was written", where=prepared.model.path, fix="put it back as it was")
    model = attach_method(load_base(resolved.spec.model, prepared.model), resolved.spec.method, resolved.spec.train)
    reader = StateReader.open(found.path, found.manifest)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in found.manifest.parameters:
            parameters[name].copy_(reader.parameter(name))
    return model.eval()


def save(model: torch.nn.Module, folder: Path, form: str, prepared: Prepared) -> None:
    """Writes safetensors, config and tokenizer (with its chat template) to `folder`."""
    target = model
    if form == "merged":
        # Merged out of place: the model in memory stays as it is, to be compared with.
        import copy

        target = copy.deepcopy(model).merge_and_unload()
    if isinstance(target, PreTrainedModel):
        target.config._attn_implementation = "sdpa"
        target.config.use_cache = True
    elif form == "adapter":
        target.peft_config["default"].base_model_name_or_path = prepared.model.path
    target.save_pretrained(folder)
    AutoTokenizer.from_pretrained(prepared.model.path, trust_remote_code=prepared.model.trust_remote_code).save_pretrained(folder)


def verify(model: torch.nn.Module, folder: Path, form: str, prepared: Prepared, resolved: ResolvedSpec) -> None:
    """Loads `folder` back and compares logits on a short row. Raises CheckpointError when they differ or a tensor is empty."""
    dtype = DTYPES[str(resolved.spec.model.dtype)]
    if form == "adapter":
        base = AutoModelForCausalLM.from_pretrained(prepared.model.path, dtype=dtype, trust_remote_code=prepared.model.trust_remote_code)
        loaded: torch.nn.Module = PeftModel.from_pretrained(base, folder)
    else:
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, trust_remote_code=prepared.model.trust_remote_code)
    empty = [name for name, parameter in loaded.named_parameters() if parameter.numel() == 0]
    ids = torch.arange(3, 35).unsqueeze(0) % model.config.vocab_size
    with torch.no_grad():
        gap = float((loaded.eval()(ids).logits.float() - model(ids, use_cache=False).logits.float()).abs().max())
    if empty or not gap <= TOLERANCES[dtype]:
        raise CheckpointError(
            f"the export does not load back as it was: largest logit difference {gap:.3g}, {len(empty)} empty tensors",
            where=str(folder),
            fix="keep the run folder and report it",
        )
    (folder / RECORD).write_text(json.dumps({"form": form, "largest_logit_difference": gap, "base": prepared.model.name}, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ftcore.export")
    parser.add_argument("run", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--format", default="auto", choices=("auto", "adapter", "merged", "hf"))
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    run_main(lambda run_dir: main(run_dir, given.to.resolve(), given.format), RunDir(given.run.resolve()))
