"""Ranks that stood still although they had something to do, since their host had no processor free for them."""

from __future__ import annotations

from ftcore.spec.run_record import number
from launcher.findings.finding import SLOW, Evidence, Finding
from launcher.findings.seen import Seen, host_of

HELD_UP = 0.10
"""Share of the time of a host's ranks from which on it is told of."""


def held_up(seen: Seen) -> Finding | None:
    """The host whose ranks were held up most, by their `held_up_seconds`; None where that is little, or was not measured."""
    times: dict[str, tuple[float, float]] = {}
    for rank in seen.record.ranks:
        lines = seen.steady_of(rank)
        host = host_of(seen, rank) or ""
        lost, spent = times.get(host, (0.0, 0.0))
        times[host] = (lost + sum(number(line, "held_up_seconds") for line in lines), spent + sum(number(line, "phase_seconds") for line in lines))
    shares = {host: lost / spent for host, (lost, spent) in times.items() if spent > 0}
    host = max(shares, key=lambda each: shares[each], default="")
    if not shares or shares[host] < HELD_UP:
        return None
    lost, spent = times[host]
    return Finding(
        kind="busy_host",
        severity=SLOW,
        what=f"{shares[host]:.0%} of the time ranks{f' on {host}' if host else ''} stood still though they had work: no processor was free for them",
        host=host,
        weight=shares[host],
        causes=("more threads than processors: other processes on the host, OMP_NUM_THREADS too large, or more ranks than cores (`top` on the host)",),
        evidence=(Evidence(what=f"held_up_seconds: {lost:.3g} of {spent:.3g} s", file="metrics/"),),
    )
