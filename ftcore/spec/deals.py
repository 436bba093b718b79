"""What a simulation asks the core to deal, and what comes back: FOLDER/deals.json and FOLDER/dealt.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.errors import CheckpointError
from ftcore.spec.resolved import build
from ftcore.spec.stored import read_stored

DEALS_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One number of ranks, and the update that is dealt to them."""

    ranks: int
    global_batch_size: int | None
    """Samples; None: tokens_per_update decides."""
    tokens_per_update: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DealsAsked:
    """One question."""

    arrows: dict[str, str]
    """Set -> its file of prepared samples."""
    attention_share: float
    """c of a sample's cost l + c·l²."""
    cases: tuple[Case, ...]
    version: int = DEALS_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """Means over the updates that were dealt to one number of ranks."""

    ranks: int
    updates: int
    """That were dealt."""
    micro_steps: float
    """Of an update."""
    samples: float
    """Of an update."""
    tokens: float
    """Of an update, those of samples."""
    imbalance: float
    """Cost of the dearest rank over that of the mean rank: what an update takes where ranks wait at its end."""
    step_imbalance: float
    """The same where ranks wait for one another after each micro-step, as ZeRO-3 has them do."""
    idle_ranks: float = 0.0
    """Ranks without a sample, of an update."""


@dataclass(frozen=True, slots=True)
class DealsDir:
    """The folder of one question."""

    path: Path

    @property
    def asked(self) -> Path:
        return self.path / "deals.json"

    @property
    def dealt(self) -> Path:
        return self.path / "dealt.json"


def load_deals(path: Path) -> DealsAsked:
    """Reads a question. Raises CheckpointError when it is missing, damaged or of another version."""
    return read_stored(DealsAsked, path, version=DEALS_VERSION, name="a question about deals", fix="ask again: ftlaunch scale --simulate")


def read_dealt(path: Path) -> tuple[Dealt, ...]:
    """Reads an answer. Raises CheckpointError when it is missing or damaged."""
    try:
        return build(tuple[Dealt, ...], tuple(json.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"not an answer about deals: {error}", where=str(path), fix="ask again: ftlaunch scale --simulate") from error
