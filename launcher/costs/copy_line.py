"""The command line that starts a plan."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.costs.planner import SPOT, Plan
from launcher.memory.choices import as_options

HOSTFILE = "HOSTFILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line said of the spec, to be said again."""

    spec: str = ""
    """As given; empty: none."""
    zero: int | None = None
    hosts: str = ""
    """--hosts."""
    include: str = ""
    """--include; as `exclude`, of the spec's own hosts alone."""
    exclude: str = ""
    """--exclude."""
    is_local: bool = True
    """Neither --hosts nor the spec names a hostfile."""
    sets: tuple[str, ...] = ()
    """KEY=VALUE."""
    own_hosts: tuple[int, ...] = (1,)
    """Slots of each host of the spec as it stands."""
    save_steps: int = 0
    """checkpoint.save_steps of the spec as it stands."""
    gpus_per_node: int = 8
    has_notice: bool = False
    elastic: bool = False


def copy_line(plan: Plan, asked: Asked) -> tuple[str, str]:
    """(the command, what has to be filled in or an empty text)."""
    chosen = plan.candidate
    changes = dict(chosen.changes)
    if plan.save_steps != asked.save_steps:
        changes["checkpoint.save_steps"] = str(plan.save_steps)
    words = ["ftlaunch", "launch"]
    words += [shlex.quote(asked.spec)] if asked.spec else []
    hosts, hint = _hosts(plan, asked, changes)
    words += hosts
    words += [f"--zero {asked.zero}"] if asked.zero is not None and "zero.stage" not in changes else []
    words += [f"--set {shlex.quote(text)}" for text in asked.sets if text.partition("=")[0] not in changes]
    words += [as_options(changes)] if changes else []
    if plan.market == SPOT and not asked.has_notice:
        words += [f"--max-restarts {restarts(plan.interruptions)}"]
        words += ["--elastic"] if asked.elastic and chosen.hosts > 1 else []
    return " ".join(words), hint


def restarts(interruptions: float) -> int:
    """More than nearly every run needs: three standard deviations over the mean, and one; at most what --max-restarts takes."""
    return 1000 if not math.isfinite(interruptions) else min(1000, math.ceil(interruptions + 3 * math.sqrt(interruptions)) + 1)


def _hosts(plan: Plan, asked: Asked, changes: dict[str, str]) -> tuple[list[str], str]:
    """(options, hint): the spec's own hosts where they are as many, this machine's slots for one host, else a hostfile to write."""
    chosen = plan.candidate
    if (len(asked.own_hosts), sum(asked.own_hosts)) == (chosen.hosts, chosen.ranks):
        own = {"--hosts": asked.hosts, "--include": asked.include, "--exclude": asked.exclude}
        return [f"{option} {shlex.quote(text)}" for option, text in own.items() if text], ""
    if chosen.hosts == 1 and asked.is_local:
        changes["cluster.slots"] = str(chosen.ranks)
        return [], ""
    return [f"--hosts {HOSTFILE}"], f"{HOSTFILE}: {_layout(chosen.ranks, asked.gpus_per_node)}"


def _layout(ranks: int, slots: int) -> str:
    full, rest = divmod(ranks, slots)
    parts: Sequence[str] = [f"{full} host{'s' if full > 1 else ''} with slots={slots}"] if full else []
    return " and ".join([*parts, *([f"one with slots={rest}"] if rest else [])])
