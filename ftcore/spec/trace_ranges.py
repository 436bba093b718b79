"""Names of the ranges that a profiled run leaves in its traces: the training writes them, the summary looks for them."""

from __future__ import annotations

RANGE_PREFIX = "ftlaunch: "
UPDATE_RANGE = "update"
"""One a profiled update, with its number: `ftlaunch: update 5`."""
PHASE_RANGES = ("data_wait", "forward", "backward", "optimizer", "checkpoint", "evaluation")
"""Inside the updates and between them: `ftlaunch: forward`."""
