"""Looks at a run from all sides; what fails to look is named among what is missing, and keeps nothing else from being said."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ftcore.spec.run_record import number
from launcher.findings.endings import ending
from launcher.findings.finding import ENDED, Finding, Findings, in_order
from launcher.findings.nonfinite import nonfinite, overflows
from launcher.findings.saves import other_findings
from launcher.findings.seen import Seen, look
from launcher.findings.shares import shares
from launcher.findings.slow import slow_findings
from launcher.findings.standing_still import standing_still
from launcher.findings.told import growth_finding, told_findings
from launcher.findings.work import work_findings
from launcher.run_folder import shown

Check = Callable[[Seen], Iterable[Finding | None]]


def examine(folder: Path) -> Findings:
    """Every finding about the run in `folder`, the gravest first. Raises CheckpointError when it holds no run."""
    seen = look(folder)
    found: list[Finding] = []
    missing = list(seen.missing)
    for what, check in _CHECKS:
        try:
            found += [each for each in check(seen) if each is not None]
        except Exception as error:  # noqa: BLE001  files that are damaged in a way nobody thought of: the rest is still worth saying
            missing.append(f"{what} could not be looked at ({type(error).__name__}: {str(error)[:120]})")
    last = seen.record.updates[-1] if seen.record.updates else {}
    return Findings(
        run=shown(seen.run),
        state=_state(seen),
        attempt=seen.attempt,
        update=seen.done,
        total_updates=int(number(last, "total_updates")) or None,
        findings=in_order(_without_doubles(found)),
        looked_at=tuple(_looked_at(seen)),
        missing=tuple(missing),
    )


def _endings(seen: Seen) -> Iterable[Finding | None]:
    return (*(ending(seen, launch) for launch in seen.launches), standing_still(seen))


def _numbers(seen: Seen) -> Iterable[Finding | None]:
    return nonfinite(seen, None, ended=False), overflows(seen)


def _growth(seen: Seen) -> Iterable[Finding | None]:
    return (*told_findings(seen), growth_finding(seen))


_CHECKS: tuple[tuple[str, Check], ...] = (
    ("how its launches ended", _endings),
    ("numbers that are not finite", _numbers),
    ("the loss curve and memory's growth", _growth),
    ("saves and rows", other_findings),
    ("the time of its phases", slow_findings),
    ("padding, micro-steps and room", work_findings),
)


def _without_doubles(found: list[Finding]) -> list[Finding]:
    """What ended the run is not told a second time as something that went wrong on the way; a leak at whose end memory ran out is told beside it."""
    ended = {each.kind for each in found if each.severity == ENDED}
    return [each for each in found if each.severity == ENDED or each.kind not in ended]


def _state(seen: Seen) -> str:
    if seen.is_running:
        return "running"
    if not seen.launches:
        return "new" if not seen.record.updates else "finished"
    if seen.is_trained and not seen.events("launch_started"):
        # As `ftlaunch status` says: its script was started by hand, or its events are lost.
        return "finished"
    return seen.launches[-1].how_ended or "killed"


def _looked_at(seen: Seen) -> Iterable[str]:
    record, found = seen.record, shares(seen)
    if record.updates:
        yield f"metrics.jsonl: updates {record.updates[0]['update']} to {record.updates[-1]['update']}"
    if record.ranks:
        yield f"metrics/: {_counted(len(record.ranks), 'rank', 's')}"
    if record.events:
        yield f"events.jsonl: {_counted(len(record.events), 'event', 's')} of {_counted(len(seen.launches), 'launch', 'es')}"
    if found.seconds > 0:
        what = "phases" if found.measured else "parts of an update (logging.phases: false measures no others)"
        named = ", ".join(
            f"{name} {seconds / found.seconds:.0%}"
            for name, seconds in sorted(found.phases.items(), key=lambda each: -each[1])
            if seconds >= 0.01 * found.seconds
        )
        yield f"{what} of {found.updates} updates: {named}"
    if seen.shape is not None:
        yield "the memory ledger of its spec"
    logs = record.run_dir.attempt_logs(max(1, seen.attempt))
    if logs.is_dir():
        yield f"{logs.relative_to(seen.run)}: errors and stacks of ranks"


def _counted(count: int, name: str, ending: str) -> str:
    return f"{count} {name}{'' if count == 1 else ending}"
