"""The rank hint of a run that trained adapters: gathered a bucket at a time from the slices of its ranks, written and told in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch

from ftcore.diagnostics.adapter_rank import adapter_spectra, factor_of, summary, to_record
from ftcore.dist import gather_objects
from ftcore.engine import Engine
from ftcore.engine_state import OwnedSlice, owned_slices, trained_shapes
from ftcore.metrics.writer import record_event
from ftcore.spec.run_dir import RunDir, write_atomic

BUCKET_ELEMENTS = 8_000_000
"""Most adapter elements held whole on a rank at once: 32 MB in fp32."""


def rank_hint_path(run_dir: RunDir) -> Path:
    """Where the hint is written."""
    return run_dir.path / "diagnostics" / "adapter_rank.json"


def write_rank_hint(run_dir: RunDir, engine: Engine) -> list[str]:
    """Writes RUN/diagnostics/adapter_rank.json, tells one line an adapter, and returns these lines; empty where nothing is LoRA.

    Every rank must call it, with its trained state in place; rank 0 works and writes, and only it returns lines.
    Weights that are not finite and a full disk are told in the line instead of a hint.
    """
    names = sorted(name for name in trained_shapes(engine) if factor_of(name) is not None)
    if not names:
        return []
    gathered = _whole_masters(engine, names)
    if not engine.ranks.is_first:
        # Takes part in the gathering, and lets go of what it gets.
        for _ in gathered:
            pass
        return []
    try:
        spectra = adapter_spectra(gathered, _scalings(engine.module))
        write_atomic(rank_hint_path(run_dir), json.dumps(to_record(spectra), indent=2) + "\n")
        lines = [f"adapter {adapter}, {summary(hints)}" for adapter, hints in spectra.items()]
    except (ValueError, OSError, torch.linalg.LinAlgError) as error:
        # A hint is no reason to fail a run that is trained, nor to leave the other ranks waiting.
        for _ in gathered:
            pass
        lines = [f"no rank hint: {error}"]
    for line in lines:
        record_event(run_dir, "note", text=line)
    return lines


def _scalings(model: torch.nn.Module) -> dict[tuple[str, str], float]:
    """(adapter, module) -> what PEFT multiplies B·A by."""
    return {(adapter, name): float(value) for name, module in model.named_modules() for adapter, value in _scaling_of(module).items()}


def _scaling_of(module: torch.nn.Module) -> dict[str, float]:
    scaling = getattr(module, "scaling", None)
    return scaling if isinstance(scaling, dict) else {}


def _whole_masters(engine: Engine, names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, fp32 master in its shape on the CPU) of each of `names`, in order, on every rank; gathers once a bucket."""
    shapes = trained_shapes(engine)
    mine: dict[str, list[OwnedSlice]] = {}
    for owned in owned_slices(engine):
        mine.setdefault(owned.name, []).append(owned)
    for bucket in _buckets(names, {name: math.prod(shapes[name]) for name in names}):
        held = [(owned.name, owned.start, _copied(owned)) for name in bucket for owned in mine.get(name, ())]
        whole = {name: torch.empty(math.prod(shapes[name])) for name in bucket}
        for pieces in gather_objects(held, engine.ranks):
            for name, start, values in pieces:
                whole[name][start : start + values.numel()] = values
        for name in bucket:
            yield name, whole[name].view(shapes[name])


def _copied(owned: OwnedSlice) -> torch.Tensor:
    """Its master on the CPU, in memory of its own: a pickled view takes the whole flat tensor below it along."""
    return owned.view(owned.flat).to("cpu", torch.float32, copy=True)


def _buckets(names: list[str], sizes: dict[str, int]) -> Iterator[list[str]]:
    """`names` cut into runs of at most BUCKET_ELEMENTS, or a single larger one."""
    bucket: list[str] = []
    held = 0
    for name in names:
        if bucket and held + sizes[name] > BUCKET_ELEMENTS:
            yield bucket
            bucket, held = [], 0
        bucket.append(name)
        held += sizes[name]
    if bucket:
        yield bucket
