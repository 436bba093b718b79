"""Follows a run's folder: each look reads what has come since the one before."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from ftcore.spec.errors import visible
from ftcore.spec.run_dir import RunDir
from ftcore.spec.run_record import RunRecord
from launcher.inspect.report import Report, look
from launcher.json_lines import Message
from launcher.progress import number
from launcher.submission.record import is_submitted
from launcher.time_left import MOST_LINES, seconds_left
from launcher.watching.curve import Curve
from launcher.watching.notices import notice
from launcher.watching.rank_times import RankTimes
from launcher.watching.stage import Launch, stage_of
from launcher.watching.tail import JsonTail
from launcher.watching.view import Notice, View

SAMPLES = 400
"""Lines of the earlier part of a long run that its curves are drawn by."""
LOOK_S, JOB_LOOK_S = 2.0, 15.0
"""Between two looks at the state; the second where Slurm is asked."""
MOST_NOTICES = 200


class Follower:
    """One run."""

    def __init__(self, run_dir: RunDir, *, clock: Callable[[], float] = time.time) -> None:
        self._run_dir, self._clock = run_dir, clock
        self._metrics, self._events = JsonTail(run_dir.metrics, samples=SAMPLES), JsonTail(run_dir.events)
        self._ranks = RankTimes(run_dir)
        self._report: Report | None = None
        self._looked_at = 0.0
        self._forget_metrics()
        self._forget_events()

    def poll(self) -> View:
        """The run as it is now. Raises CheckpointError when the folder holds no run that can be read."""
        # The state first: what a run wrote before its end is then read after it.
        report = self._look()
        self._read_events()
        self._read_metrics()
        now, line = self._clock(), self._line
        launch = self._launch
        is_running = report.state == "running"
        ranks = self._ranks.poll(report.world_size)
        stage = stage_of(self._run_dir, launch, line) if is_running else ""
        return View(
            name=report.run,
            state="preparing" if stage.startswith("prepar") else report.state,
            why=visible(report.why),
            stage=stage,
            attempt=report.attempt,
            world_size=report.world_size,
            hosts=len(report.hosts),
            elapsed_s=None if launch.started is None else max(0.0, (now if launch.ended is None else launch.ended) - launch.started),
            left_s=self._left_s if is_running else None,
            silent_s=report.last_update_age_s if is_running and line else None,
            line=line,
            # A copy: whoever draws it may do so while this reads on.
            losses=Curve(list(self._losses.points)),
            ranks=ranks,
            checkpoint=visible(report.checkpoint),
            evaluations=tuple(self._evaluations.values()),
            notices=tuple(self._notices),
            last_error=visible(report.last_error),
            slow_ranks=frozenset(self._slow),
        )

    def _look(self) -> Report:
        wait = JOB_LOOK_S if is_submitted(self._run_dir) else LOOK_S
        now = time.monotonic()
        if self._report is None or now - self._looked_at >= wait:
            # The state needs no updates, and a long run is not read whole for rates that are not shown.
            nothing = RunRecord(run_dir=self._run_dir, resolved={}, updates=[], ranks={}, events=[], plan=None, memory=None, environment=None)
            self._report, self._looked_at = look(self._run_dir, nothing), now
        return self._report

    def _forget_metrics(self) -> None:
        self._line: Message = {}
        self._losses = Curve()
        self._newest: deque[Message] = deque(maxlen=MOST_LINES)
        self._left_s: float | None = None

    def _forget_events(self) -> None:
        self._notices: deque[Notice] = deque(maxlen=MOST_NOTICES)
        self._evaluations: dict[str, str] = {}
        self._launch = Launch()
        self._slow: set[int] = set()

    def _read_metrics(self) -> None:
        news = self._metrics.poll()
        if news.is_anew:
            self._forget_metrics()
        for line in news.lines:
            update = line.get("update")
            if not isinstance(update, int):
                continue
            self._line = line
            self._losses.add(update, line.get("loss"))
            self._newest.append(line)
        if news.lines:
            self._left_s = seconds_left(self._newest)

    def _read_events(self) -> None:
        news = self._events.poll()
        if news.is_anew:
            self._forget_events()
        for event in news.lines:
            self._launch = self._launch.after(event)
            if event.get("event") == "launch_started":
                self._slow.clear()
            elif event.get("event") == "finding" and event.get("kind") == "slow_rank" and isinstance(event.get("rank"), int):
                self._slow.add(event["rank"])
            elif event.get("event") == "evaluation":
                which = str(event.get("set", "eval"))
                perplexity = f", perplexity {number(event.get('perplexity'), ',.4g')}" if "perplexity" in event else ""
                self._evaluations[which] = visible(f"{which} loss {number(event.get('loss'), '.4f')}{perplexity} (after update {event.get('update')})")
            made = notice(event)
            if made is not None:
                self._notices.append(Notice(time=made.time, text=visible(made.text), tone=made.tone))
