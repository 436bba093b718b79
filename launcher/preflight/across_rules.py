"""What hosts must have in common. Pure functions: the facts of all hosts that were reached -> findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ftcore.spec.resolved import Host
from launcher.preflight.finding import Finding, error, warning

Facts = Mapping[str, Any]
Reached = Sequence[tuple[Host, Facts]]

CLOCK_WARNING_S = 2.0
"""Logs of two hosts can't be put in order any more, and the age of files on a shared disk is wrong."""
CLOCK_TICKETS_S = 300.0
"""munge (Slurm) and Kerberos refuse what is older or newer."""

_SAME_ENVIRONMENT = "install the same environment on all hosts (an environment on a shared disk is the easiest)"
_OTHER_FIX = {
    "the driver": "install the same driver on all hosts",
    "the processor's kind": "leave it out with --exclude, unless that is meant",
    "the accelerators' model": "the slowest sets the pace: leave it out with --exclude, unless that is meant",
}
_MUST_EQUAL: dict[str, Callable[[Facts], str | None]] = {
    "python": lambda facts: ".".join(facts["python"].split(".")[:2]) if "python" in facts else None,
    "torch": lambda facts: facts.get("versions", {}).get("torch"),
    "deepspeed": lambda facts: facts.get("versions", {}).get("deepspeed"),
}
_SHOULD_EQUAL: dict[str, Callable[[Facts], str | None]] = {
    "python's patch level": lambda facts: facts.get("python"),
    "transformers": lambda facts: facts.get("versions", {}).get("transformers"),
    "peft": lambda facts: facts.get("versions", {}).get("peft"),
    "NCCL": lambda facts: facts.get("versions", {}).get("nccl"),
    "the driver": lambda facts: facts.get("driver"),
    "the processor's kind": lambda facts: facts.get("machine"),
    "the accelerators' model": lambda facts: ", ".join(sorted({each["name"] for each in facts["accelerators"]})) if facts.get("accelerators") else None,
}
"""What is compared -> its value on a host; None: not known there, and not compared."""


def across_findings(reached: Reached, code: str) -> list[Finding]:
    """All in which the hosts differ; `code` is the digest of ftlaunch's code here."""
    return [*_versions(reached), *_code(reached, code), *_kinds(reached), *_one_machine(reached)]


def clock_findings(skews: Mapping[str, tuple[float, float]]) -> list[Finding]:
    """`skews`: host -> seconds its clock is ahead of this machine's, and how wrong that may be."""
    findings = []
    for name, (skew, doubt) in skews.items():
        off = abs(skew) - doubt
        if off > CLOCK_WARNING_S:
            far = "; munge and Kerberos refuse to work with it" if off > CLOCK_TICKETS_S else ""
            what = f"{name}: its clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine's{far}"
            fix = f"let chrony or systemd-timesyncd set it (timedatectl on {name}); until then times in logs can't be compared"
            findings.append(warning(name, "clock", what, fix))
    return findings


def _versions(reached: Reached) -> Iterator[Finding]:
    said_of_python: set[str] = set()
    for rules, level in ((_MUST_EQUAL, error), (_SHOULD_EQUAL, warning)):
        for title, value_of in rules.items():
            for host, value, usual, others in _odd_ones(reached, value_of):
                if title.startswith("python"):
                    if host in said_of_python:
                        continue
                    said_of_python.add(host)
                what = f"{title} differs: {host} has {value or 'none'}, {others} {usual or 'none'}"
                yield level(host, "versions", what, _OTHER_FIX.get(title, _SAME_ENVIRONMENT))


def _odd_ones(reached: Reached, value_of: Callable[[Facts], str | None]) -> Iterator[tuple[str, str, str, str]]:
    """Host, its value, the usual value and who has it, for each host that differs from most (from the first host, when none are most)."""
    values = {host.name: value for host, facts in reached if (value := value_of(facts)) is not None}
    usual = max(values.values(), key=Counter(values.values()).__getitem__, default=None)
    if usual is None:
        return
    usual_hosts = [name for name, value in values.items() if value == usual]
    others = usual_hosts[0] if len(usual_hosts) == 1 else f"{len(usual_hosts)} others"
    for name, value in values.items():
        if value != usual:
            yield name, value, usual, others


def _code(reached: Reached, code: str) -> Iterator[Finding]:
    for host, facts in reached:
        if "code" not in facts or facts["code"] == code:
            continue
        if not facts["code"]:
            yield error(host.name, "code", f"{host.name} has no ftlaunch {_at(facts)}", "install it there, or use a path that all hosts share")
        else:
            what = f"{host.name}: ftlaunch's code {_at(facts)} is not the same as here (digest {facts['code']}, here {code})"
            yield error(host.name, "code", what, "bring both to the same commit, or share one copy")


def _at(facts: Facts) -> str:
    return f"in {facts['code_root']}" if facts.get("code_root") else f"where {facts.get('executable', 'its python')} looks"


def _kinds(reached: Reached) -> Iterator[Finding]:
    """Some with accelerators and some without: their ranks would not find each other, NCCL here and gloo there."""
    with_some = [host.name for host, facts in reached if facts.get("accelerators")]
    without = [host.name for host, facts in reached if facts.get("accelerators") == []]
    if with_some and without:
        what = f"{', '.join(without)} have no accelerator that a rank may use, {', '.join(with_some)} have"
        yield error(without[0] if len(without) == 1 else "", "accelerators", what, "leave those hosts out with --exclude, or set DS_ACCELERATOR=cpu for all")


def _one_machine(reached: Reached) -> Iterator[Finding]:
    names: dict[str, list[Host]] = {}
    for host, facts in reached:
        if facts.get("identity"):
            names.setdefault(facts["identity"], []).append(host)
    for hosts in names.values():
        if len(hosts) > 1:
            total = sum(host.slots for host in hosts)
            what = f"{' and '.join(host.name for host in hosts)} are one machine; its slots would be counted twice"
            yield warning(hosts[1].name, "names", what, f"give it one line: `{hosts[0].name} slots={total}`, or fewer")
