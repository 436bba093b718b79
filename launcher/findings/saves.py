"""What went wrong beside the end of a run: saves that failed, updates without anything to learn, rows that were left out."""

from __future__ import annotations

from collections import Counter

from ftcore.spec.run_record import number
from launcher.findings.finding import NOTE, WRONG, Evidence, Finding, Knob
from launcher.findings.seen import Seen

_FULL = ("No space left", "quota")


def other_findings(seen: Seen) -> list[Finding]:
    """Failed saves, empty updates, dropped rows, and an end before the last update."""
    found = (_saves(seen), _empty(seen), _dropped(seen), _early(seen))
    return [each for each in found if each is not None]


def _saves(seen: Seen) -> Finding | None:
    failed = seen.events("save_failed")
    if not failed:
        return None
    last, saved = failed[-1], seen.events("checkpoint")
    is_over = bool(saved) and number(saved[-1], "time") > number(last, "time")
    is_full = any(words in str(last.get("reason")) for words in _FULL)
    since = f"; since then update {saved[-1].get('update')} was saved" if is_over else "; none was saved since"
    return Finding(
        kind="disk_full" if is_full else "save_failed",
        severity=NOTE if is_over else WRONG,
        what=f"the checkpoint after update {last.get('update')} was not saved: {last.get('reason')}{since}",
        rank=last.get("rank") if isinstance(last.get("rank"), int) else None,
        update=int(number(last, "update")) or None,
        phase="checkpoint",
        time=number(last, "time") or None,
        weight=2.0,
        details=(f"{len(failed)} saves failed in all",) if len(failed) > 1 else (),
        causes=("free some space on its disk; training goes on and the save is tried again",) if is_full else (),
        evidence=(Evidence(what=f"{len(failed)} save_failed events", file="events.jsonl"),),
        knobs=(Knob(options="--set checkpoint.save_total_limit=1", gives="one checkpoint is kept", may_resume=True),) if is_full else (),
    )


def _empty(seen: Seen) -> Finding | None:
    empty = seen.events("empty_update")
    if not empty:
        return None
    return Finding(
        kind="empty_updates",
        severity=WRONG if len(empty) > 0.1 * max(1, seen.done) else NOTE,
        what=f"{len(empty)} updates held no supervised token and changed nothing, the first is update {empty[0].get('update')}",
        update=int(number(empty[0], "update")) or None,
        causes=("what is supervised: `ftlaunch data report` shows it by set",),
        evidence=(Evidence(what=f"{len(empty)} empty_update events", file="events.jsonl"),),
    )


def _dropped(seen: Seen) -> Finding | None:
    rows: Counter[str] = Counter()
    for line in seen.record.updates:
        dropped = line.get("dropped_rows")
        for reason in dropped if isinstance(dropped, dict) else ():
            rows[str(reason)] += int(number(dropped or {}, reason))
    planned = (seen.record.plan or {}).get("dropped")
    for reason in planned if isinstance(planned, dict) else ():
        rows[str(reason)] += int(number(planned or {}, reason))
    if not rows.total():
        return None
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in rows.most_common(4))
    file = "bad_rows" if seen.record.run_dir.bad_rows.is_dir() else "plan.json"
    return Finding(kind="dropped_rows", severity=NOTE, what=f"{rows.total():,} rows were left out: {reasons}", evidence=(Evidence(what=reasons, file=file),))


def _early(seen: Seen) -> Finding | None:
    for name, why in (("early_stop", "its evaluations no longer got better"), ("data_end", "its data ended, as data.repeat: false says")):
        # Where a resume trained on, the run did not end there.
        events = [event for event in seen.events(name) if number(event, "update") >= seen.done]
        if events and not seen.is_running:
            last = events[-1]
            what = f"it ended after update {last.get('update')} of {last.get('total_updates')}: {why}"
            return Finding(
                kind=name, severity=NOTE, what=what, update=int(number(last, "update")) or None, evidence=(Evidence(what=f"{name} event", file="events.jsonl"),)
            )
    return None
