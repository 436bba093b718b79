"""Random state of one rank: python, numpy, torch and its accelerator, as JSON without pickle."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ftcore.spec.errors import CheckpointError


def capture_rng() -> str:
    """The process's random states, as the text that `load_rng` reads."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(gauss)],
        "torch": _encode(torch.get_rng_state()),
        "accelerator": _encode(torch.cuda.get_rng_state()) if torch.cuda.is_available() else None,
    }
    return json.dumps(state)


def load_rng(path: Path) -> str:
    """Restores what `capture_rng` gave; returns a note on the accelerator's state where the run went on to another kind of device, else "".

    That state can't be restored then, and is left as it is. Raises CheckpointError when anything else is not possible; never goes on unseeded.
    """
    try:
        return _restore(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise CheckpointError(f"the random state can't be restored: {error}", where=str(path), fix="resume from an older checkpoint") from error


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Afterwards the process's random states are as before; after an error too."""
    state = capture_rng()
    try:
        yield
    finally:
        _restore(state)


def _restore(text: str) -> str:
    state = json.loads(text)
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.asarray(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_decode(state["torch"]))
    if state["accelerator"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(_decode(state["accelerator"]))
    return _device_note(saved_on_accelerator=state["accelerator"] is not None)


def _device_note(*, saved_on_accelerator: bool) -> str:
    if saved_on_accelerator == torch.cuda.is_available():
        return ""
    saved, now = ("an accelerator", "the CPU") if saved_on_accelerator else ("the CPU", "an accelerator")
    return f"the checkpoint was written on {saved} and the run goes on on {now}: it can't be equal to the bit, and dropout draws other numbers"


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
