"""A model's shape for any architecture: from a process that builds the model without memory, where config.json alone does not tell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ftcore.spec.builtin_models import TINY_LLAMA
from ftcore.spec.errors import SpecError
from ftcore.spec.sections import ModelSection
from launcher.environment import launch_environment
from launcher.memory.config_file import PACKAGE, find_config, package_file
from launcher.memory.shape import ModelShape, Tensor, read_shape
from launcher.memory.shape_config import WHERE

PRINTED = "exact shape: "
"""What the line with the JSON begins with (ftcore/exact_shape.py)."""
TIMEOUT_S = 600.0
"""A model of 10^12 parameters is built on the meta device in well under a minute; the rest is for the hub."""


def exact_shape(model: ModelSection) -> ModelShape:
    """The shape of any model that transformers can build. Raises SpecError with transformers' reason when it can't."""
    name = model.model_name_or_path
    if name == TINY_LLAMA:
        return read_shape(find_config(model))
    path = package_file(name) if name.startswith(PACKAGE) else Path(name).expanduser()
    place = (str(path.parent), model.revision, "0", path.name) if path.is_file() else (name, model.revision, str(int(model.trust_remote_code)))
    argv = [sys.executable, "-m", "ftcore.exact_shape", *place]
    try:
        ended = subprocess.run(argv, env=launch_environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise SpecError(f"building {name} without memory took more than {TIMEOUT_S:.0f} s", where=WHERE, fix="check the network to the hub") from error
    line = next((text for text in ended.stdout.splitlines() if text.startswith(PRINTED)), None)
    if ended.returncode or line is None:
        reason = (ended.stderr.strip().splitlines() or ["no reason was given"])[-1]
        fix = "check the name; model.trust_remote_code: true lets a repository's own code run"
        raise SpecError(f"{name} can't be built: {reason[:300]}", where=WHERE, fix=fix)
    return shape_of_facts(json.loads(line.removeprefix(PRINTED)))


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
