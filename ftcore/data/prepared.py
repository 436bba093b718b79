"""What preparation made: where the samples and the base model lie, and the counts that the plan is made from. RUN/prepared.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcore.data.stream_source import StreamSource
from ftcore.spec.stored import read_stored, stored_text

PREPARED_VERSION = 3


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
    """One data set: tokens read = `tokens` - `repeated_tokens` + `dropped_tokens`; without splits `samples` + the values of `dropped` = `rows`."""

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
    """Tokens of the rows not kept, and those cut off."""
    truncated: int = 0
    """Rows kept that were cut to data.max_length."""
    fingerprint: str = ""
    """sha256 over the samples: equal fingerprints mean equal ids, spans and order."""
    format: str = ""
    """What the rows were read as: messages, alpaca, ...; what `auto` found."""
    files: tuple[str, ...] = ()
    """The files that were read, as they are shown, in the order of their rows."""
    bad_rows: int = 0
    """Rows that break a rule and were left out by data.on_bad_row: drop; in `dropped` too, as bad_row."""
    split: int = 0
    """Rows that were split."""
    lost_ends: int = 0
    """Rows kept whose last answer was cut before its end."""
    dropped_turns: int = 0
    """Turns longer than a sample may be, of rows that were split."""
    repeated_tokens: int = 0
    """Tokens that stand in several samples of a row that was split (its system message, tools), counted for each sample but the first."""
    duplicates: int = 0
    """Samples with the same ids as an earlier one."""
    outcomes: str = ""
    """Absolute path of a JSONL file with one line for every row that was dropped, bad, cut or split: row, file, line, outcome, reason, tokens."""

    @property
    def tokens_read(self) -> int:
        """Tokens of all rows that could be read."""
        return self.tokens - self.repeated_tokens + self.dropped_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything that `ftcore.prepare` hands on."""

    train: dict[str, PreparedSet]
    """The sets of `data.training` by name; empty where data.streaming reads them during the training."""
    eval: dict[str, PreparedSet]
    """The sets of `data.held_out` by name; empty: no evaluation."""
    model: ModelSource
    stream: StreamSource | None = None
    """What is read during the training; None: everything is prepared."""
    chat_template: str = ""
    """The text of the template that data.chat_template named; empty: the tokenizer's own. Exports carry it, whatever becomes of its file."""
    version: int = PREPARED_VERSION

    def to_json(self) -> str:
        """Indented JSON with a final newline; `load_prepared` gives back an equal value."""
        return stored_text(self)


def load_prepared(path: Path) -> Prepared:
    """Reads RUN/prepared.json. Raises CheckpointError when it is missing, damaged or of another version."""
    fix = "run the preparation again: ftlaunch --resume RUN"
    return read_stored(Prepared, path, version=PREPARED_VERSION, name="a prepared run", fix=fix, renew=_renew)


def _renew(data: dict[str, Any]) -> dict[str, Any]:
    """Version 2 knew one set to train on."""
    return {**data, "train": {"train": data["train"]}, "version": PREPARED_VERSION} if data.get("version") == 2 else data
