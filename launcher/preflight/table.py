"""The report as text: what each host has, a column a host, then how they reach each other, then the findings. Pure functions."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from launcher.preflight.finding import Finding, HostReport, Report
from launcher.preflight.host_rules import gib

WIDTH = 100
_MOST_COLUMNS = 8
"""Hosts side by side; more of them go below."""
_GAP = 2


def render_report(report: Report) -> str:
    """The whole text, without a final newline; no line of the table is wider than 100 columns."""
    parts = [*_tables(report), *_together(report), *_findings(report.findings), _verdict(report)]
    return "\n".join(parts)


def _tables(report: Report) -> list[str]:
    titles = max(map(len, _ROWS))
    lines: list[str] = []
    rest = list(report.hosts)
    while rest:
        count = min(len(rest), _MOST_COLUMNS)
        shown, rest = rest[:count], rest[count:]
        room = (WIDTH - titles) // count - _GAP
        cells = {title: [_cut(row(host), room) for host in shown] for title, row in _ROWS.items()}
        cells = {title: line for title, line in cells.items() if not set(line) <= {"", "-"}}
        widths = [max(len(line[place]) for line in cells.values()) for place in range(count)]
        for title, line in cells.items():
            padded = "".join(" " * _GAP + cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            lines.append(f"{title.ljust(titles)}{padded}".rstrip())
        lines.append("")
    return lines


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(1, room - 2)]}.."


def _version(name: str) -> Callable[[HostReport], str]:
    return lambda host: host.facts.get("versions", {}).get(name) or "-" if host.reached else ""


def _accelerators(host: HostReport) -> str:
    found = host.facts.get("accelerators")
    if found is None:
        return ""
    return f"{len(found)} {found[0]['name'].removeprefix('NVIDIA ')}" if found else "none"


def _accelerator_memory(host: HostReport) -> str:
    free = [each["memory_free"] for each in host.facts.get("accelerators", ()) if each["memory_free"] is not None]
    return f"{gib(min(free))} free" if free else ""


def _memory(host: HostReport) -> str:
    return gib(host.facts["memory_available"]) if "memory_available" in host.facts else ""


def _disk(name: str) -> Callable[[HostReport], str]:
    def cell(host: HostReport) -> str:
        folder = host.facts.get("folders", {}).get(name)
        if folder is None:
            return ""
        return f"{gib(folder['free'])}" if "free" in folder else "missing"

    return cell


def _limit(name: str) -> Callable[[HostReport], str]:
    def cell(host: HostReport) -> str:
        limit = host.facts.get("limits", {}).get(name)
        if limit is None:
            return ""
        return "unlimited" if limit[0] is None else gib(limit[0]) if name == "memlock" else str(limit[0])

    return cell


def _clock(host: HostReport) -> str:
    if host.clock_skew_s is None or host.clock_error_s is None:
        return ""
    return f"{host.clock_skew_s:+.3f} s" if abs(host.clock_skew_s) > host.clock_error_s else "same"


_ROWS: dict[str, Callable[[HostReport], str]] = {
    "host": lambda host: host.name,
    "reached": lambda host: "yes" if host.reached else "NO",
    "slots": lambda host: str(host.slots),
    "accelerators": _accelerators,
    "their memory": _accelerator_memory,
    "driver": lambda host: host.facts.get("driver") or "-" if host.reached else "",
    "NCCL": _version("nccl"),
    "CPU cores": lambda host: str(host.facts.get("cores", "")),
    "memory left": _memory,
    "/dev/shm": lambda host: gib(host.facts["shm_free"]) if "shm_free" in host.facts else "",
    "python": lambda host: host.facts.get("python", ""),
    "torch": _version("torch"),
    "deepspeed": _version("deepspeed"),
    "transformers": _version("transformers"),
    "peft": _version("peft"),
    "ftlaunch": lambda host: (host.facts.get("code") or "-")[:12] if host.reached else "",
    "address": lambda host: host.address,
    "interface": lambda host: host.interface,
    "clock": _clock,
    "disk of the run": _disk("run"),
    "disk of the cache": _disk("cache"),
    "open files": _limit("nofile"),
    "locked memory": _limit("memlock"),
}
"""Row's title -> its cell."""


def _together(report: Report) -> list[str]:
    """What hosts have only together."""
    lines = []
    if report.master_addr and len(report.hosts) > 1:
        port = f" port {report.master_port}" if report.master_port else ""
        lines.append(f"ranks meet at {report.master_addr}{port} ({report.master_origin})")
    if report.connections:
        works = [each for each in report.connections if not each.error]
        slowest = max((each.seconds for each in works if each.seconds is not None), default=None)
        took = f", the slowest in {slowest * 1000:.1f} ms" if slowest is not None else ""
        lines.append(f"connections between hosts: {len(works)} of {len(report.connections)} tried work{took}")
    known = {name: state for name, state in report.shared.items() if state is not None}
    if known:
        title = {"run": "run folder", "cache": "cache"}
        lines.append("shared by all: " + ", ".join(f"{title[name]} {'yes' if state else 'NO'}" for name, state in known.items()))
    if report.all_reduce is not None:
        measured = report.all_reduce
        lines.append(f"all-reduce of 1 MiB over {len(measured['hosts'])} ranks ({measured['backend']}): {measured['seconds'] * 1000:.2f} ms, sums right")
    return [*lines, ""] if lines else []


def _findings(findings: tuple[Finding, ...]) -> list[str]:
    lines = []
    for each in findings:
        lines += textwrap.wrap(f"{each.level}: {each.what}", WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        lines += textwrap.wrap(f"fix: {each.fix}", WIDTH, initial_indent="    ", subsequent_indent="         ", break_long_words=False, break_on_hyphens=False)
    return [*lines, ""] if lines else []


def _verdict(report: Report) -> str:
    errors, warnings = len(report.errors), len(report.findings) - len(report.errors)
    count = len(report.hosts)
    said = f"{count} host{'s' if count != 1 else ''} asked in {report.elapsed_s:.1f} s: "
    if errors:
        return f"{said}not fit, {errors} error{'s' if errors != 1 else ''}"
    return said + ("fit" if not warnings else f"fit, {warnings} warning{'s' if warnings != 1 else ''}")
