"""Who waited in a stretch's collectives, and for whom. Axes: W ranks, S slots (a collective of all ranks each), P places in BUSY.

  wait of rank r in collective s   = last arrival - when r began to wait, at least 0 and at most as long as r was blocked
  charged to                       the rank that came last

Arrivals are compared on one clock. Ranks of one host share the monotonic clock, so that nothing is estimated there. Between hosts the offset is the median
difference of the ends of collectives that nobody leaves before the last one has come: all ends lie between the last arrival and that plus the transfer, so the
collectives with the shortest transfer (the least time that any rank was blocked) tell it best. It is estimated anew in each stretch, so that drift never
adds up. Blocked times alone, without clocks, would do for collectives that block at once (the last rank is blocked least). They can't for one that is
started and waited for later: a rank that came early and had much to do before its `wait` is not blocked at all, and would be taken for the last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
BEST_ENDS = 0.25
"""Share of the collectives, those with the shortest transfer, that clocks are compared by."""
FEWEST_ENDS = 5


def clock_offsets(ends_WS: Floats, blocked_WS: Floats, clocks: Sequence[str]) -> Floats:
    """Seconds by which each rank's clock is ahead of rank 0's, [W]; zeros where all share one. `clocks` names each rank's.

    The ends are of collectives that synchronise; without any nothing is known, and the offsets are NaN but for rank 0's host.
    """
    offsets = np.zeros(len(clocks))
    if len(set(clocks)) == 1:
        return offsets
    transfers_S = blocked_WS.min(axis=0)
    count = min(len(transfers_S), max(FEWEST_ENDS, int(BEST_ENDS * len(transfers_S))))
    best = np.argsort(transfers_S, kind="stable")[:count]
    here = np.array([clock == clocks[0] for clock in clocks])
    for clock in set(clocks) - {clocks[0]}:
        there = np.array([each == clock for each in clocks])
        # The median over a host's ranks first: one that was put off on its way out of a collective tells nothing of the clock.
        apart_S = np.median(ends_WS[there][:, best], axis=0) - np.median(ends_WS[here][:, best], axis=0)
        offsets[there] = np.median(apart_S) if len(best) else np.nan
    return offsets


def charge_waits(came_WS: Floats, waits_from_WS: Floats, waited_WS: Floats, offsets_W: Floats) -> tuple[Floats, Floats]:
    """(idle [W, S]: what each rank waited for a later one, caused [W, S]: what all others together waited for it)."""
    came = came_WS - offsets_W[:, None]
    last_S = came.max(axis=0)
    idle_WS = np.clip(last_S - (waits_from_WS - offsets_W[:, None]), 0.0, waited_WS)
    late_S = came.argmax(axis=0)
    slots = np.arange(came.shape[1])
    idle_WS[late_S, slots] = 0.0
    caused_WS = np.zeros_like(idle_WS)
    caused_WS[late_S, slots] = idle_WS.sum(axis=0)
    return idle_WS, caused_WS


def excess(busy_WP: Floats) -> Floats:
    """Seconds by which each rank was busier with each phase than the median of the others, [W, P]."""
    others = len(busy_WP) - 1
    if not others:
        return np.zeros_like(busy_WP)
    order_WP = np.argsort(busy_WP, axis=0, kind="stable")
    sorted_WP = np.take_along_axis(busy_WP, order_WP, axis=0)
    place_WP = np.argsort(order_WP, axis=0, kind="stable")
    # Without its own value what follows it moves down by one.
    low, high = ((np.where(place_WP > middle, sorted_WP[middle], sorted_WP[middle + 1])) for middle in ((others - 1) // 2, others // 2))
    return np.asarray(busy_WP - (low + high) / 2)


def shares_of_phases(more_P: Floats) -> Floats:
    """What of a rank's lateness each phase is charged with, [P], sum 1: in proportion to what the rank was busier than the others with.

    Nothing is more where a rank came late by turns: then it is the phase with least less.
    """
    positive = np.maximum(more_P, 0.0)
    if positive.sum() > 0:
        return np.asarray(positive / positive.sum())
    shares = np.zeros(len(more_P))
    shares[int(np.argmax(more_P))] = 1.0
    return shares
