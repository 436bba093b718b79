"""Which model is evaluated: found, checked against its base, named for the result, and loaded."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import torch
from safetensors.torch import load_file

from ftcore.checkpoint import layout
from ftcore.checkpoint.find import Found
from ftcore.checkpoint.manifest import read_manifest
from ftcore.checkpoint.read import StateReader
from ftcore.data.digests import file_digest
from ftcore.data.prepared import ModelSource
from ftcore.dist import Ranks
from ftcore.engine_inference import fill
from ftcore.evaluation_plan import EvaluationPlan
from ftcore.export_choice import BEST, NEWEST, choose_checkpoint
from ftcore.model.adapters import activate, put_on
from ftcore.model.build import build_model
from ftcore.model.load import load_base, partitioned_loading
from ftcore.scoring.result import ModelIdentity
from ftcore.spec.adapter_file import ADAPTER_CONFIG, ADAPTER_WEIGHTS, EXPORT_RECORD
from ftcore.spec.errors import CheckpointError, SpecError
from ftcore.spec.evaluation import EvaluationRequest
from ftcore.spec.run_dir import RunDir


def identify(request: EvaluationRequest, source: ModelSource) -> ModelIdentity:
    """Finds the model and what it is. Raises CheckpointError when no such checkpoint is whole, or it belongs to another base;
    SpecError when an adapter does."""
    spec = request.resolved.spec
    common = {"kind": request.kind, "name": request.name, "base": source.name, "base_digest": source.digest, "revision": source.revision}
    if request.kind == "run":
        which = BEST if request.best else NEWEST if request.update is None else str(request.update)
        found = choose_checkpoint(RunDir(Path(request.path)), which, purpose="evaluate")
        _require_base(found, source)
        return ModelIdentity(
            **common,
            method=spec.method.type,
            update=found.manifest.update,
            checkpoint=str(found.path),
            checkpoint_digest=file_digest(found.path / layout.MANIFEST, Path(request.resolved.cache_dir)),
            adapter=request.adapter,
        )
    if request.kind == "adapter":
        folder = Path(request.path)
        _require_adapters_base(folder, source)
        digest = file_digest(folder / ADAPTER_WEIGHTS, Path(request.resolved.cache_dir))
        return ModelIdentity(**common, method="qlora" if spec.method.type == "qlora" else "lora", adapter=request.path, adapter_digest=digest)
    return ModelIdentity(**common, method=spec.method.type)


def _require_base(found: Found, source: ModelSource) -> None:
    base = found.manifest.base
    if base["digest"] != source.digest:
        what = f"{found.path.name} was trained on {base['name']} with digest {base['digest'][:12]}, the model now has {source.digest[:12]}"
        raise CheckpointError(what, where=source.path, fix="put the base model back as it was")


def _require_adapters_base(folder: Path, source: ModelSource) -> None:
    """By the digest that an export records; else by the name in adapter_config.json."""
    record, config = _json(folder / EXPORT_RECORD), _json(folder / ADAPTER_CONFIG)
    digest = str(record.get("base_digest") or "")
    names = {str(name) for name in (record.get("base"), config.get("base_model_name_or_path")) if name}
    if digest == source.digest or (not digest and names & {source.name, source.path, str(Path(source.path).resolve())}):
        return
    known = f"{', '.join(sorted(names)) or 'an unnamed model'}{f' with digest {digest[:12]}' if digest else ''}"
    raise SpecError(
        f"the adapter in {folder} was trained on {known}, the spec's base is {source.name} with digest {source.digest[:12]}",
        where="model.model_name_or_path",
        fix="give the spec of the adapter's own base, or --set model.model_name_or_path=BASE",
    )


def _json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def load_evaluated(request: EvaluationRequest, plan: EvaluationPlan, ds_config: Path, ranks: Ranks) -> torch.nn.Module:
    """The model with its adapter or its checkpoint's values in place; partitioned in stage 3. Every rank must call it."""
    spec, identity = request.resolved.spec, plan.identity
    if identity.kind == "run":
        model = build_model(spec, plan.source, ds_config)
        _fill_from(Path(identity.checkpoint), model, ranks)
        if identity.adapter:
            activate(model, identity.adapter)
        return model
    quantised = spec.method if spec.method.type == "qlora" else None
    with nullcontext() if quantised else partitioned_loading(ds_config):
        base = load_base(spec.model, plan.source, quantised)
        if identity.kind != "adapter":
            return base
        return put_on(base, Path(identity.adapter), spec.train.precision)


def _fill_from(checkpoint: Path, model: torch.nn.Module, ranks: Ranks) -> None:
    manifest = read_manifest(checkpoint)
    reader = StateReader.open(checkpoint, manifest)
    fill(model, manifest.parameters, reader.parameter, ranks)
    stored = load_file(checkpoint / layout.BUFFERS)
    for name, buffer in model.named_buffers():
        if name in stored:
            buffer.copy_(stored[name])
