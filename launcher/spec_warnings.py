"""What a spec allows that its user should be reminded of at each start."""

from __future__ import annotations

from ftcore.spec.sections import Spec
from launcher.combinations.verdict import verdict


def spec_warnings(spec: Spec) -> tuple[str, ...]:
    """A line for each; empty for most specs."""
    untested = tuple(f"untested combination: {reason}" for reason in verdict(spec).warnings)
    if not spec.model.trust_remote_code:
        return untested
    model = spec.model
    return (f"model.trust_remote_code is true: code that {model.model_name_or_path} ships (revision {model.revision}) runs on every rank, as you", *untested)
