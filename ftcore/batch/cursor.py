"""Where a run stands in its data and its evaluations: a few numbers, none of which depends on the number of ranks."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from ftcore.spec.errors import CheckpointError

_LATER = frozenset({"lowest_metric", "evaluations_without_gain", "measured_update"})
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
    lowest_metric: float | None = None
    """The lowest checkpoint.metric_for_best_model of all evaluations; None: none was measured."""
    evaluations_without_gain: int = 0
    """Evaluations in a row that did not bring it down."""
    measured_update: int = -1
    """Updates done at the last evaluation that measured it; -1: there was none."""

    def advance(self, *, epoch: int, stepped: bool, samples: int, supervised_tokens: int, tokens: int) -> Cursor:
        """The cursor after one more update; `epoch` is that of the update after it, `stepped` says whether the optimizer took a step."""
        return dataclasses.replace(
            self,
            epoch=epoch,
            next_update=self.next_update + 1,
            steps_taken=self.steps_taken + stepped,
            samples_seen=self.samples_seen + samples,
            supervised_tokens_seen=self.supervised_tokens_seen + supervised_tokens,
            tokens_seen=self.tokens_seen + tokens,
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

    def check_same_data(self, *, fingerprint: str, seed: int) -> None:
        """Raises CheckpointError when the data or the seed changed since the cursor was written: its position would mean other samples."""
        if fingerprint != self.data_fingerprint:
            raise CheckpointError(
                f"the training data changed since the checkpoint was written (fingerprint {self.data_fingerprint[:12]} then, {fingerprint[:12]} now)",
                where="data.train",
                fix="put the data back as it was, or start a new run",
            )
        if seed != self.order_seed:
            raise CheckpointError(
                f"train.seed is {seed}, the checkpoint was written with {self.order_seed}", where="train.seed", fix="resume with the same seed"
            )
