"""Where a run stands in its data and its evaluations: a few numbers, none of which depends on the number of ranks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ftcore.batch.data_identity import DataIdentity
from ftcore.spec.errors import CheckpointError, Problem

_LATER = frozenset({"lowest_metric", "evaluations_without_gain", "measured_update", "data_sets", "data_draws", "seen_by_set", "stream"})
"""Fields that cursors of older checkpoints don't have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The position after the last finished update."""

    epoch: int = 0
    """Epoch of the next update, 0-based."""
    next_update: int = 0
    """Updates done, and the 0-based number of the next one."""
    steps_taken: int = 0
    """Optimizer steps, which the schedule counts: updates but those that held nothing to learn from, or were skipped as not finite."""
    samples_seen: int = 0
    supervised_tokens_seen: int = 0
    tokens_seen: int = 0
    order_seed: int
    """The seed the order is made from."""
    data_fingerprint: str
    """Fingerprint of the training set the position belongs to."""
    data_sets: dict[str, str] = field(default_factory=dict)
    """Fingerprint of each set by name; empty in older cursors."""
    data_draws: dict[str, int] = field(default_factory=dict)
    """Samples that an epoch draws of each set."""
    seen_by_set: dict[str, dict[str, int]] = field(default_factory=dict)
    """Samples, tokens and supervised tokens so far of each set of a mix; empty with a single set."""
    stream: dict[str, Any] | None = None
    """Where a stream stands; None: the update's number is enough."""
    lowest_metric: float | None = None
    """The lowest checkpoint.metric_for_best_model of all evaluations; None: none was measured."""
    evaluations_without_gain: int = 0
    """Evaluations in a row that did not bring it down."""
    measured_update: int = -1
    """Updates done at the last evaluation that measured it; -1: there was none."""

    @staticmethod
    def at_start(data: DataIdentity, seed: int) -> Cursor:
        """Before the first update of a run on these data."""
        return Cursor(order_seed=seed, data_fingerprint=data.fingerprint).on(data)

    def on(self, data: DataIdentity) -> Cursor:
        """The same update, learning rate and counts on other data: what follows is in the order of those."""
        same = data.fingerprint == self.data_fingerprint
        stream = self.stream if same else None
        return dataclasses.replace(self, data_fingerprint=data.fingerprint, data_sets=dict(data.sets), data_draws=dict(data.draws), stream=stream)

    @property
    def data(self) -> DataIdentity:
        """The data that the position belongs to."""
        return DataIdentity(fingerprint=self.data_fingerprint, sets=self.data_sets, draws=self.data_draws)

    def advance(
        self, *, epoch: int, stepped: bool, samples: int, supervised_tokens: int, tokens: int, by_set: Mapping[str, Mapping[str, int]] | None = None
    ) -> Cursor:
        """The cursor after one more update; `epoch` is that of the update after it, `stepped` says whether the optimizer took a step.

        `by_set`: the update's counts by set of a mix.
        """
        seen = {name: dict(counts) for name, counts in self.seen_by_set.items()}
        for name, counts in (by_set or {}).items():
            seen[name] = {key: seen.get(name, {}).get(key, 0) + count for key, count in counts.items()}
        return dataclasses.replace(
            self,
            epoch=epoch,
            next_update=self.next_update + 1,
            steps_taken=self.steps_taken + stepped,
            samples_seen=self.samples_seen + samples,
            supervised_tokens_seen=self.supervised_tokens_seen + supervised_tokens,
            tokens_seen=self.tokens_seen + tokens,
            seen_by_set=seen,
        )

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> Cursor:
        """Raises CheckpointError when the text is not a cursor."""
        try:
            values = json.loads(text)
            missing = sorted({field.name for field in dataclasses.fields(Cursor)} - set(values) - _LATER)
            if missing:
                raise ValueError(f"{', '.join(missing)} missing")
            return Cursor(**values)
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"not a cursor: {error}", where="cursor.json") from error

    def require_same(self, data: DataIdentity, seed: int, *, other_data: bool = False) -> None:
        """Raises CheckpointError when the seed changed since the cursor was written, or the data, with each set that did: its position would mean
        other samples. `other_data`: the data may be others.
        """
        problems = [] if other_data else data.problems_since(self.data)
        if seed != self.order_seed:
            what = f"train.seed is {seed}, the checkpoint was written with {self.order_seed}"
            problems.append(Problem(what=what, where="train.seed", fix="resume with the same seed"))
        if problems:
            raise CheckpointError(problems)
