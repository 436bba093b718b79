"""The row of tokens that a rank computes in one micro-step, as far as memory depends on it."""

from __future__ import annotations

from dataclasses import dataclass

from ftcore.spec.resolved import ResolvedSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One micro-step of one rank."""

    segments: tuple[int, ...]
    """Tokens of its samples; padded to the longest where `padded`."""
    supervised: int
    """Positions at which logits are computed."""
    padded: bool = False
    """A row a sample instead of one row for all."""
    on_cpu: bool = False
    """Whether it is computed on the host, where blocks of the loss are smaller and masks of dropout wider."""

    @property
    def tokens(self) -> int:
        """Positions computed, padding included."""
        return max(self.segments) * len(self.segments) if self.padded else sum(self.segments)


def largest_row(resolved: ResolvedSpec, *, supervised_share: float = 1.0, on_cpu: bool = False) -> Row:
    """The row that takes most: micro_batch_tokens, filled with samples of max_length, of which `supervised_share` is supervised (all of it when not known)."""
    spec = resolved.spec
    budget, longest = spec.batch.micro_batch_tokens, min(spec.data.max_length, spec.batch.micro_batch_tokens)
    samples, rest = divmod(budget, longest)
    padded = spec.batch.layout == "padded"
    segments = (longest,) * samples + ((rest,) if rest and not padded else ())
    tokens = sum(segments)
    return Row(segments=segments, supervised=max(1, min(tokens, round(tokens * supervised_share))), padded=padded, on_cpu=on_cpu)
