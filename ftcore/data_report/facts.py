"""What a report holds, as data: data_report.json is `Report` as JSON. Keys are added, never renamed, within a version (ftcore.spec.data_report)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ftcore.data_report.copies import Copies, Overlap
from ftcore.data_report.outcomes import Outcome
from ftcore.data_report.rendered import Segment
from ftcore.data_report.spread import Bin, Spread
from ftcore.spec.data_report import REPORT_VERSION
from ftcore.spec.errors import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRow:
    """One of the longest rows."""

    row: int
    tokens: int
    supervised_tokens: int | None
    """None where the row was dropped."""
    outcome: str
    """kept, dropped, truncated or split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedSample:
    """A sample as it is trained on."""

    row: int
    tokens: int
    supervised_tokens: int
    segments: list[Segment]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFacts:
    """Weights of a set in which any isn't 1."""

    samples: int
    """Samples with a weight other than 1."""
    smallest: float
    largest: float
    sum: float
    """Over all supervised tokens: what the loss is divided by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFacts:
    """How rows become text, and how the supervised part of it is found."""

    name: str
    """The tokenizer's own, a name, a file; or that rows need none."""
    masks: str
    """markers ({% generation %} in the template), rendering (proved row by row), or none (no template is used)."""
    described: str
    note: str = ""
    """What looks like a mistake in how the rows are put together; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetReport:
    """One data set."""

    key: str
    """Where the spec names it."""
    purpose: str
    """train or eval."""
    path: str
    files: list[str]
    format: str
    format_reason: str
    revision: str
    arrow: str
    """Where the samples lie; empty: the set can't be prepared."""
    rows: int
    samples: int
    tokens: int
    supervised_tokens: int
    tokens_read: int
    dropped_tokens: int
    repeated_tokens: int
    dropped: dict[str, int]
    """Reason -> rows."""
    bad_rows: int
    truncated: int
    split: int
    lost_ends: int
    first: dict[str, list[Outcome]]
    """bad, dropped, truncated, split -> the first rows."""
    without_targets: list[int]
    """The first rows with nothing to learn from."""
    lengths: Spread | None
    """Of the samples kept."""
    histogram: list[Bin]
    supervised_shares: Spread | None
    """Supervised tokens in percent of a sample's tokens."""
    longest: list[LongRow]
    copies: Copies
    weights: WeightFacts | None
    template: TemplateFacts | None
    rendered: list[RenderedSample]
    refusals: list[Problem]
    """Why training would refuse the set."""
    rows_file: str
    """Every row that was not kept as it is; empty: there is none."""

    @property
    def supervised_share(self) -> float:
        """Supervised tokens over the tokens of the samples kept."""
        return self.supervised_tokens / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MixShare:
    """A training set's part in the mix."""

    samples: float
    """Of all samples of an epoch."""
    tokens: float
    """Of its tokens."""
    draws: int
    """Samples of it in an epoch."""
    asked: str
    """weight 0.3, 1000 samples, 2 epochs, or its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything about the data of a spec."""

    spec: str
    created: str
    model: str
    tokenizer: str
    """Folder that the tokenizer was loaded from."""
    max_length: int
    overlong: str
    on_bad_row: str
    loss_on: str
    sets: dict[str, SetReport]
    """By name: training sets, then held-out sets."""
    overlaps: list[Overlap]
    mix: dict[str, MixShare] = field(default_factory=dict)
    """Training set -> its part; empty with one set."""
    notes: list[str] = field(default_factory=list)
    refusals: list[Problem] = field(default_factory=list)
    """Why training would refuse the sets together."""
    refuses: bool = False
    """Whether training would refuse this data."""
    version: int = REPORT_VERSION
