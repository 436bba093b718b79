"""What a position in the training data belongs to: the samples of each set, and how many of them an epoch draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ftcore.batch.mix import Mixed, MixOrder
from ftcore.data.stream_source import StreamSource
from ftcore.spec.errors import Problem

SHOWN_DIGITS = 12
ALLOW_OPTION = "--allow-data-change"
FIX = (
    f"put the data back as they were, start a new run, or go on with {ALLOW_OPTION}: update, learning rate and optimizer state stay, "
    "and the order is that of the new data, so that rows may be seen again or never"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataIdentity:
    """The training data of a run. Older cursors know the fingerprint of the whole alone."""

    fingerprint: str
    """Of all together, rules of drawing included."""
    sets: Mapping[str, str] = field(default_factory=dict)
    """Fingerprint of each set by name."""
    draws: Mapping[str, int] = field(default_factory=dict)
    """Samples that an epoch draws of each set; a stream has none."""

    @staticmethod
    def of_sets(mix: Mixed, order: MixOrder) -> DataIdentity:
        """Of prepared sets, drawn in that order."""
        sets = dict(zip(mix.names, mix.fingerprints, strict=True))
        return DataIdentity(fingerprint=order.fingerprint(mix.fingerprint), sets=sets, draws=dict(zip(mix.names, order.counts, strict=True)))

    @staticmethod
    def of_stream(stream: StreamSource) -> DataIdentity:
        """Of a stream."""
        return DataIdentity(fingerprint=stream.fingerprint, sets={each.name: each.fingerprint for each in stream.sets})

    def problems_since(self, before: DataIdentity) -> list[Problem]:
        """What is other than `before`, a problem for each set; empty when a position means the same samples in both."""
        if self.fingerprint == before.fingerprint:
            return []
        whole = f"fingerprint {_short(before.fingerprint)} then, {_short(self.fingerprint)} now"
        found = [problem for name in dict.fromkeys((*before.sets, *self.sets)) for problem in self._of_set(name, before)] if before.sets else []
        found = found or [Problem(what=f"the training data changed since the checkpoint was written ({whole})", where="data.train")]
        return [*found[:-1], replace(found[-1], fix=FIX)]

    def _of_set(self, name: str, before: DataIdentity) -> list[Problem]:
        then, now = before.sets.get(name), self.sets.get(name)
        counts = before.draws.get(name), self.draws.get(name)
        if now is None:
            what = f"the set {name} is gone since the checkpoint was written (fingerprint {_short(then)} then)"
        elif then is None:
            what = f"the set {name} was added since the checkpoint was written (fingerprint {_short(now)} now)"
        elif then != now:
            what = f"the set {name} changed since the checkpoint was written (fingerprint {_short(then)} then, {_short(now)} now)"
        elif counts[0] != counts[1]:
            what = f"an epoch draws {counts[1]} samples of the set {name}, and drew {counts[0]} when the checkpoint was written"
        else:
            return []
        return [Problem(what=what, where="data.train" if name == "train" else f"data.train_sets.{name}")]


def _short(fingerprint: str | None) -> str:
    return (fingerprint or "")[:SHOWN_DIGITS]
