"""What preparation made: where the samples and the base model lie, and the counts that the plan is made from. RUN/prepared.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ftcore.spec.stored import read_stored, stored_text

PREPARED_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """The base model as it lies on this machine."""

    path: str
    """Absolute folder in Hugging Face's format; model and tokenizer both load from it."""
    revision: str
    """The commit of a hub model; empty for a local one."""
    digest: str
    """sha256 over the names and bytes of the weight files, config.json and code: the base model's identity."""
    name: str
    """As the user gave it."""
    trust_remote_code: bool
    """Whether code in the folder may run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSet:
    """One data set: `samples` + the values of `dropped` = `rows`, and tokens read = `tokens` + `dropped_tokens`."""

    arrow: str
    """Absolute path for `SampleSet.open`."""
    samples: int
    """Samples kept."""
    rows: int
    """Rows of the file."""
    tokens: int
    """Tokens in the samples kept."""
    supervised_tokens: int
    """Labels that count, after the shift."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Rows not kept, by reason: `overlong`, `no_supervised_tokens`."""
    dropped_tokens: int = 0
    """Tokens of the rows not kept, and those cut off by truncate_right."""
    truncated: int = 0
    """Rows kept that were cut to data.max_length."""
    fingerprint: str = ""
    """sha256 over the samples: equal fingerprints mean equal ids, spans and order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything that `ftcore.prepare` hands on."""

    train: PreparedSet
    eval: dict[str, PreparedSet]
    """The sets of `data.held_out` by name; empty: no evaluation."""
    model: ModelSource
    version: int = PREPARED_VERSION

    def to_json(self) -> str:
        """Indented JSON with a final newline; `load_prepared` gives back an equal value."""
        return stored_text(self)


def load_prepared(path: Path) -> Prepared:
    """Reads RUN/prepared.json. Raises CheckpointError when it is missing, damaged or of another version."""
    return read_stored(Prepared, path, version=PREPARED_VERSION, name="a prepared run", fix="run the preparation again: ftlaunch --resume RUN")
