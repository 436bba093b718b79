"""What `ftlaunch verify-loss` runs: VERIFICATION/request.json, written by the launcher and read by the processes of the check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ftcore.spec.run_dir import RunDir
from ftcore.spec.stored import read_stored, stored_text

REQUEST_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One way to split the work of the same updates."""

    name: str
    """Also the name of its run folder."""
    world_size: int
    zero_stage: int
    micro_batch_tokens: int
    layout: str
    """packed or padded."""
    reordered: bool = False
    """Whether the samples of the reference are regrouped and reordered: the same sums with other rounding, which gives the noise floor."""
    then_world_size: int = 0
    """Ranks that go on after half of the updates; 0: it is not stopped."""
    then_zero_stage: int = 0
    """The stage that it goes on in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A split, or half of one, as the ranks of a leg train it."""

    split: str
    until: int
    """Updates done when it stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """Parts that one set of ranks trains, one after the other."""

    world_size: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A split that the rules refuse."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationRequest:
    """Everything that is trained and compared."""

    updates: int
    precision: str
    optimizer: str
    """adamw or sgd."""
    splits: tuple[Split, ...]
    """The first is the reference, the second the reference reordered."""
    legs: tuple[Leg, ...]
    """In the order they run."""
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    """In what the check differs from the spec."""
    version: int = REQUEST_VERSION

    @property
    def reference(self) -> Split:
        """What the others are compared with."""
        return self.splits[0]

    @property
    def others(self) -> tuple[Split, ...]:
        """All but the reference."""
        return self.splits[1:]

    def split(self, name: str) -> Split:
        """The split of that name."""
        return next(split for split in self.splits if split.name == name)

    def to_json(self) -> str:
        """Indented JSON with a final newline; `load_verification` gives back an equal value."""
        return stored_text(self)


@dataclass(frozen=True, slots=True)
class VerificationDir:
    """The folder of a check and what lies in it beside logs and node scripts. Nothing here touches the disk."""

    path: Path

    @property
    def request(self) -> Path:
        return self.path / "request.json"

    @property
    def preparation(self) -> RunDir:
        """Where the data and the model are prepared, once for all splits."""
        return RunDir(self.path / "preparation")

    @property
    def result(self) -> Path:
        return self.path / "verify.json"

    @property
    def table(self) -> Path:
        """The result as text for a terminal."""
        return self.path / "verify.txt"

    def run(self, split: str) -> RunDir:
        """The run folder of a split."""
        return RunDir(self.path / "splits" / split)

    def gap(self, split: str) -> Path:
        """JSON: how far a split's parameters lie from the reference's."""
        return self.path / "gaps" / f"{split}.json"


def load_verification(path: Path) -> VerificationRequest:
    """Reads request.json. Raises CheckpointError when it is missing, damaged or of another version."""
    return read_stored(VerificationRequest, path, version=REQUEST_VERSION, name="a check of losses", fix="start it again: ftlaunch verify-loss")
