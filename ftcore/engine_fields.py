"""Names of stored fields, apart from engine_state so that export need not import deepspeed."""
from __future__ import annotations

MASTER = "master"
"""The fp32 values of a parameter; other fields are the optimizer's own names (exp_avg, exp_avg_sq, momentum_buffer)."""
