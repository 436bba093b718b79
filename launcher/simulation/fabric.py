"""The network between hosts as a user writes it: 8x400 (cards a host, Gbit/s each), 400GB/s, 3200Gb/s."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ftcore.spec.errors import SpecError

WHERE = "--network"
FORMS = "8x400 (8 cards of 400 Gbit/s a host), 400GB/s or 3200Gb/s (of all cards of a host)"
_SIZES = {"M": 1e6, "G": 1e9, "T": 1e12}
_MOST = 1e15
"""Bytes a second; above it somebody has mistaken the unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """What joins the hosts."""

    node_bandwidth: float
    """Bytes a second of all network cards of one host together, one way."""
    words: str
    """As it was given."""


def parse_network(text: str, where: str = WHERE) -> Fabric:
    """The network that `text` names. A bare number after x is Gbit/s of one card. Raises SpecError for anything else."""
    cleaned = re.sub(r"\s+", "", text)
    matched = re.fullmatch(r"(?:(\d+)[xX*×])?(\d+(?:\.\d+)?)([A-Za-z/]*)", cleaned)
    bandwidth = _bandwidth(matched) if matched else 0.0
    if not 0 < bandwidth < _MOST:
        raise SpecError(f"'{text}' is no network", where=where, fix=f"write it as {FORMS}")
    return Fabric(node_bandwidth=bandwidth, words=text.strip())


def _bandwidth(matched: re.Match[str]) -> float:
    """Bytes a second; 0 for what has no meaning."""
    cards, number, unit = matched[1], float(matched[2]), matched[3]
    if not unit:
        # A bare number alone could be either unit, and of one card or of all.
        return int(cards) * number * 1e9 / 8 if cards else 0.0
    return (int(cards) if cards else 1) * number * _factor(unit)


def _factor(unit: str) -> float:
    """Bytes a second of a unit: bits and bytes are told apart by the letter's case, as data sheets do it (Gb, GB), and by the word bit."""
    matched = re.fullmatch(r"([MGT])(b|B|bit|bits)(?:/s|ps)?", unit)
    return _SIZES[matched[1]] / (1 if matched[2] == "B" else 8) if matched else 0.0
