"""RUN/work.json: what a run's MFU counts (ftcore.spec.model_work), from the model's config.json, the spec and the accelerators of this launch.

Full: 6M + A a token; LoRA: 4M + A + 6N of the adapters (forward 2, gradients of inputs 2, of weights 2 a parameter where it is trained); M: matrices of the
decoder layers for each token, the head for each supervised one; A: 6 · layers · heads · head size · length for each token of a sample, which sees half of it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ftcore.spec.model_work import AttentionWork, ModelWork
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.run_dir import RunDir, write_atomic
from launcher.memory.accelerators import Accelerator, by_model, find_accelerator
from launcher.memory.config_file import read_config
from launcher.memory.layout import Held, model_layout
from launcher.memory.roofline import peak_flops
from launcher.memory.shape import LINEAR_KINDS, ModelShape, read_shape
from launcher.memory.work import matmul_parameters

FULL = "6M + A a token: M the matrices of the decoder layers, and the head at supervised tokens; A attention; nothing that is recomputed"
ADAPTED = "4M + A + 6N a token: M the matrices of the decoder layers, and the head at supervised tokens; A attention; N the adapters'; nothing recomputed"


def write_model_work(run_dir: RunDir, resolved: ResolvedSpec) -> None:
    """Writes RUN/work.json of a prepared run; removes one of an earlier launch where the model or the folder can't be read: MFU is then not known."""
    try:
        prepared, environment = _json(run_dir.prepared), _json(run_dir.environment)
        shape = read_shape(read_config(Path(prepared["model"]["path"]) / "config.json"))
        write_atomic(run_dir.work, model_work(resolved, shape, environment.get("hosts") or []).to_json())
    except Exception:  # noqa: BLE001  an odd model must not keep a run from starting
        with contextlib.suppress(OSError):
            run_dir.work.unlink()


def model_work(resolved: ResolvedSpec, shape: ModelShape, hosts: list[dict[str, Any]]) -> ModelWork:
    """The operations of a run's model; `hosts` are those of environment.json, with the names that drivers give their accelerators."""
    spec = resolved.spec
    accelerator = _accelerator(spec.hardware.accelerator, hosts)
    ranks = max((host.slots for host in resolved.hosts), default=1)
    peak = None if accelerator is None else peak_flops(spec, accelerator) / (ranks if accelerator.is_host else 1)
    passes = max(1, len(spec.method.adapters))
    head, layout = shape.vocab * shape.hidden, model_layout(spec, shape)
    trained = list(layout.trained_ones())
    whole = [each for each in trained if ".lora_" not in each.tensor.name]
    own = sum(_seen(each, shape) for each in whole if each.tensor.kind in LINEAR_KINDS)
    heads = sum(1 for each in whole if _is_head(each, shape))
    added = {of_head: sum(_seen(each, shape) for each in trained if _is_adapter(each) and (each.tensor.kind == "head") is of_head) for of_head in (True, False)}
    return ModelWork(
        token_flops=4.0 * passes * matmul_parameters(shape) + 2.0 * own + 6.0 * added[False],
        supervised_token_flops=4.0 * passes * head + 2.0 * heads * head + 6.0 * added[True],
        attention=tuple(_attention(shape, passes)),
        peak_flops=peak,
        on_cpu=accelerator is not None and accelerator.is_host,
        accelerator="" if accelerator is None else accelerator.name,
        formula=FULL if spec.method.type == "full" else ADAPTED,
    )


def _attention(shape: ModelShape, passes: int) -> Iterator[AttentionWork]:
    windowed = len(shape.windowed) if shape.window else 0
    for layers, window in ((shape.layers - windowed, 0), (windowed, shape.window)):
        if layers:
            yield AttentionWork(square_flops=6.0 * passes * layers * shape.heads * shape.head_dim, window=window)


def _seen(held: Held, shape: ModelShape) -> float:
    """Numbers of a matrix that one token passes through: of experts those it is sent to."""
    share = shape.experts_per_token / shape.experts if held.tensor.kind == "expert" and shape.experts else 1.0
    return held.tensor.total * share


def _is_adapter(held: Held) -> bool:
    """Whether it is a matrix that PEFT adds; vectors (DoRA's) and an embedding's are no products over tokens' states."""
    return ".lora_" in held.tensor.name and len(held.tensor.shape) > 1 and held.tensor.kind != "embedding"


def _is_head(held: Held, shape: ModelShape) -> bool:
    return held.tensor.kind == "head" or (shape.tied and held.tensor.kind == "embedding" and ".modules_to_save." not in held.tensor.name)


def _accelerator(named: str, hosts: list[dict[str, Any]]) -> Accelerator | None:
    """What the ranks compute on: by the names that drivers give, the slowest; else as the spec names it. A host's cores only where it says so."""
    names = [str(name) for host in hosts for name in host.get("accelerators") or []]
    if not names:
        return find_accelerator(named) if named.partition(":")[0].strip().lower() == "cpu" else None
    found = [by_model(name) for name in names]
    known = [each for each in found if each is not None]
    if len(known) == len(found):
        return min(known, key=lambda each: each.bf16_flops)
    given = find_accelerator(named) if named else None
    return given if given is not None and not given.is_host else None


def _json(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}
