"""A model's shape for any architecture, and the trace of its micro-step: from a process that builds the model without memory and runs it once."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ftcore.spec.errors import SpecError
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import ModelSection
from launcher.environment import launch_environment
from launcher.memory.activation_row import Row, largest_row
from launcher.memory.config_file import PACKAGE, package_file
from launcher.memory.shape import ModelShape, Tensor
from launcher.memory.shape_config import WHERE
from launcher.memory.traced import Traced

PRINTED = "exact trace: "
"""What the line with the JSON begins with (ftcore/exact_trace.py)."""
TIMEOUT_S = 600.0
"""A model of 10^12 parameters is built and run on tensors without memory in well under a minute; the rest is for the hub."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """What building and running the model without memory told."""

    shape: ModelShape
    traced: Traced | None
    untraced: str = ""
    """Why there is no trace."""


def exact_model(resolved: ResolvedSpec, row: Row | None = None, *, on_cpu: bool = False) -> Exact:
    """The shape of any model that transformers can build, and the trace of `row`: the largest that the spec allows, when not given.

    Raises SpecError with transformers' reason when the model can't be built.
    """
    name = resolved.spec.model.model_name_or_path
    request = _request(resolved, row or largest_row(resolved, on_cpu=on_cpu))
    argv = [sys.executable, "-m", "ftcore.exact_trace"]
    try:
        ended = subprocess.run(argv, input=json.dumps(request), env=launch_environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        what = f"building and tracing {name} without memory took more than {TIMEOUT_S:.0f} s"
        raise SpecError(what, where=WHERE, fix="check the network to the hub; plan without --exact") from error
    line = next((text for text in ended.stdout.splitlines() if text.startswith(PRINTED)), None)
    if ended.returncode or line is None:
        reason = (ended.stderr.strip().splitlines() or ["no reason was given"])[-1]
        fix = "check the name; model.trust_remote_code: true lets a repository's own code run"
        raise SpecError(f"{name} can't be built: {reason[:300]}", where=WHERE, fix=fix)
    found = json.loads(line.removeprefix(PRINTED))
    traced = Traced(**found["trace"]) if found["trace"] is not None else None
    return Exact(shape=shape_of_facts(found["shape"]), traced=traced, untraced=found["untraced"])


def _request(resolved: ResolvedSpec, row: Row) -> dict[str, Any]:
    model = resolved.spec.model
    return {**_place(model), "resolved": resolved.to_json(), "row": dataclasses.asdict(row)}


def _place(model: ModelSection) -> dict[str, Any]:
    """Where transformers finds the model's configuration."""
    name = model.model_name_or_path
    path = package_file(name) if name.startswith(PACKAGE) else Path(name).expanduser()
    is_file = path.is_file()
    return {
        "path": str(path.parent) if is_file else str(path) if path.is_dir() else name,
        "gguf_file": path.name if is_file else "",
        "revision": model.revision,
        "with_code": model.trust_remote_code and not is_file,
    }


def shape_of_facts(facts: dict[str, Any]) -> ModelShape:
    """The shape from what ftcore.exact_shape printed."""
    tensors = tuple(
        Tensor(
            name=each["name"],
            shape=tuple(each["shape"]),
            kind=each["kind"],
            module=each["module"],
            layers=tuple(each["layers"]) if each["layers"] is not None else None,
        )
        for each in facts["tensors"]
    )
    return ModelShape(**{**facts, "tensors": tensors}, gated=any("gate" in tensor.name for tensor in tensors))
