"""How far off a simulated point may be: a band that nine of ten published rows would have been in (benchmarks/simulator.py counts them).

Tied to a measured speed, the band grows with the distance: TIED, and A_DOUBLING for each doubling of the ranks from there; only the measured point itself has
no more than TIED. Without one the program is not
known to the model, and published programs differ from it by up to UNTIED. Collectives add their own share, since what a network reaches of its cards was
assumed.
"""

from __future__ import annotations

import math

TIED = 0.05
TIED_CPU = 0.3
"""On CPUs, whose cores share memory and whatever else runs: on a busy machine our own wall times were up to 27 % off (docs/simulation.md)."""
A_DOUBLING = 0.01
UNTIED = 0.33
"""The worst of the published rows: NeMo's LoRA on H100, which is as much faster as torchtitan without compiling is slower."""
UNTIED_CPU = 0.5
"""Of the speed of CPUs nothing is known but cores and clock."""
NETWORK = 0.2
"""Of the seconds of collectives; 0.7 to 0.95 of the cards' bandwidth were tried in place of 0.85."""
MOST = 0.9


def half_width(*, ranks: int, anchor_ranks: int | None, communication_share: float, on_cpu: bool, is_measured: bool = False) -> float:
    """Half of the band, as a share of update_seconds; `is_measured`: the anchor is this very point, its ZeRO stage and its update included."""
    if anchor_ranks is None:
        own = UNTIED_CPU if on_cpu else UNTIED
        return min(MOST, own + NETWORK * communication_share)
    tied = TIED_CPU if on_cpu else TIED
    if is_measured:
        return tied
    return min(MOST, tied + A_DOUBLING * abs(math.log2(ranks / anchor_ranks)) + NETWORK * communication_share)


def in_words(*, is_tied: bool, on_cpu: bool) -> str:
    """How the band comes about, for the table."""
    if is_tied:
        tied = TIED_CPU if on_cpu else TIED
        return f"±{tied:.0%}, {A_DOUBLING:.0%} more a doubling of ranks away from what was measured, and {NETWORK:.0%} of the collectives"
    own = UNTIED_CPU if on_cpu else UNTIED
    return f"±{own:.0%}, and {NETWORK:.0%} of the collectives: no speed of yours was measured (--measured)"
