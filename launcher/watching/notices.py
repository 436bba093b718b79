"""Events of events.jsonl as lines for people."""

from __future__ import annotations

from ftcore.spec.errors import PREEMPTED
from launcher.failure import describe_status
from launcher.json_lines import Message
from launcher.progress import clock_time, number
from launcher.watching.view import Notice


def notice(event: Message) -> Notice | None:
    """The line of an event; None for one that is no news to whoever watches."""
    name = event.get("event")
    made = {
        "finding": _finding,
        "launch_started": _started,
        "launch_ended": _ended,
        "loop_start": _loop,
        "restart": lambda e: (f"going on by itself, for the {e.get('number')}. time: {e.get('reason')}", "warn"),
        "resumed": lambda e: (f"goes on after update {e.get('update')}, from {e.get('path')}", ""),
        "resumed_with": lambda e: (f"goes on with other settings: {_names(e.get('changed'))}", ""),
        "evaluation": lambda e: (f"evaluation after update {e.get('update')}: {e.get('set', 'eval')} loss {number(e.get('loss'), '.4f')}", ""),
        "checkpoint": lambda e: (f"saved {e.get('path')}", "good"),
        "save_failed": lambda e: (f"the checkpoint after update {e.get('update')} was not saved: {e.get('reason')}", "wrong"),
        "failed_update": lambda e: (f"update {e.get('update')} changed nothing: {e.get('reason')}", "warn"),
        "overflow": lambda e: (f"update {e.get('update')} changed nothing: {e.get('reason')}", ""),
        "empty_update": lambda e: (f"update {e.get('update')} changed nothing: {e.get('reason')}", "warn"),
        "early_stop": lambda e: (f"stops early after update {e.get('update')}: {e.get('metric')} no longer gets better", "good"),
        "data_end": lambda e: (f"the data ended after update {e.get('update')}", ""),
        "preempted": lambda e: (f"stopped after update {e.get('update')} as asked; saved {e.get('path') or 'nothing'}", "warn"),
        "requeued": lambda e: (f"job {e.get('job')} is back in the queue: {e.get('reason')}", "warn"),
        "profile": lambda e: (f"profiled: {e.get('path')}", ""),
        "note": lambda e: (str(e.get("text")), ""),
        "error": _error,
        "rank_exit": _exit,
    }.get(str(name))
    told = None if made is None else made(event)
    if told is None:
        return None
    time = event.get("time")
    text = " ".join(told[0].split())
    return Notice(time=float(time) if isinstance(time, int | float) else 0.0, text=text, tone=told[1])


def _finding(event: Message) -> tuple[str, str]:
    return f"{event.get('kind')} at update {event.get('update')}: {event.get('what')}", "warn"


def _started(event: Message) -> tuple[str, str]:
    return f"attempt {event.get('attempt')} began on {event.get('host') or 'a host'}", ""


def _ended(event: Message) -> tuple[str, str]:
    status = event.get("status")
    tone = "good" if status == 0 else "warn" if status == PREEMPTED else "wrong"
    reason = event.get("reason") or (describe_status(status) if isinstance(status, int) else "")
    took = event.get("seconds")
    return f"attempt {event.get('attempt')} ended: {reason}" + (f", after {clock_time(took)}" if isinstance(took, int | float) else ""), tone


def _loop(event: Message) -> tuple[str, str]:
    done = event.get("update")
    return f"training begins on {event.get('world_size')} ranks" + (f", after update {done}" if done else ""), ""


def _error(event: Message) -> tuple[str, str] | None:
    if event.get("lost_peer"):
        return None
    problems = event.get("problems")
    first = problems[0] if isinstance(problems, list) and problems and isinstance(problems[0], dict) else {}
    what = str(first.get("what") or str(event.get("traceback") or "").strip().rpartition("\n")[2] or "an error").partition("\n")[0]
    return (f"rank {event['rank']}: {what}" if event.get("rank") is not None else what), "wrong"


def _exit(event: Message) -> tuple[str, str] | None:
    status = event.get("status")
    if not isinstance(status, int) or status in (0, PREEMPTED) or event.get("ended_by_launcher"):
        return None
    return f"rank {event.get('rank')} on {event.get('host')} ended: {describe_status(status)}", "wrong"


def _names(changed: object) -> str:
    return ", ".join(map(str, changed)) if isinstance(changed, dict | list) else str(changed)
