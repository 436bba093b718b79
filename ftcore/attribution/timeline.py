"""One rank's time, cut at phases and collectives: marks are taken while it works and added up when they can be read.

A stretch is what lies between two logged updates. Of each collective of all ranks three times are kept, by slot: when this rank came (started it), from when
on it could do nothing but wait for it, and for how long. A collective that the rank starts and goes on working keeps the two apart: only its `wait` blocks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from ftcore.attribution.clocks import Clock
from ftcore.attribution.phases import BUSY, EVALUATING, OTHER, REGIONS, SAVING, TRAINING, region_of

BEGIN, END, LAUNCH = -1, -2, -3
"""Codes of marks beside the phases, which are at least 0: blocked from here on, no more, started without being blocked."""
NO_SLOT, SPILLED = -1, -2
"""Of a collective of some ranks only; of one of all ranks for which no slot is left, by region: SPILLED - region."""
MOST_MARKS = 8192
"""From so many on those that can be read are added up, so that a long stretch holds no more."""


@dataclass(slots=True)
class Stretch:
    """One rank's time between two cuts; seconds."""

    began: float
    """On the rank's own clock."""
    seconds: float
    busy: list[float]
    """By place in BUSY, without what is blocked."""
    held_up: list[float]
    """What of `busy` the rank could have worked and got no processor."""
    blocked: list[list[float]]
    """In collectives of all ranks by region: those with a slot, and those without."""
    elsewhere: float
    """In collectives of some ranks."""
    counts: list[int]
    """Collectives of all ranks that were started, by region; the first of them have the region's slots."""
    capacities: tuple[int, ...]
    """Slots by region; the regions' slots follow each other."""
    came: list[float]
    """By slot, when the rank came; like `waits_from` on the rank's own clock."""
    waits_from: list[float]
    waited: list[float]
    synchronises: list[bool]
    """Whether all ranks left it together."""


def _fresh(began: float, capacities: tuple[int, ...]) -> Stretch:
    slots = sum(capacities)
    return Stretch(
        began=began,
        seconds=0.0,
        busy=[0.0] * len(BUSY),
        held_up=[0.0] * len(BUSY),
        blocked=[[0.0, 0.0] for _ in range(REGIONS)],
        elsewhere=0.0,
        counts=[0] * REGIONS,
        capacities=capacities,
        came=[0.0] * slots,
        waits_from=[0.0] * slots,
        waited=[0.0] * slots,
        synchronises=[False] * slots,
    )


class Timeline:
    """The listener of `ftcore.collective_calls`, and of the loop, which says when a phase begins."""

    def __init__(self, clock: Clock, world_size: int, capacities: tuple[int, ...]) -> None:
        """`capacities`: slots by region, the same on every rank."""
        self.inside, self.world_size = False, world_size
        self._clock = clock
        self._phase = self._read_phase = OTHER
        """Where the rank is, and where the marks that are read end."""
        self._marks: deque[tuple[Any, int, int]] = deque()
        self._stretches = 0
        self._last: float | None = None
        """When the last mark that was read lies; None: none was."""
        self._held_up = 0.0
        self._marks.append((clock.mark(), OTHER, NO_SLOT))
        self._blocked_in: int | None = None
        """The slot of what the marks that are read end in; None: the rank works there."""
        self._stretch = _fresh(0.0, capacities)
        self._firsts = _firsts(capacities)
        self._started = [0] * REGIONS

    def mark(self) -> Any:
        """As the clock's."""
        return self._clock.mark()

    def switch(self, phase: int) -> None:
        """From now on the rank is busy with `phase`, a place in BUSY."""
        self._phase = phase
        self._note(self._clock.mark(), phase, NO_SLOT)

    def blocked(self, began: Any, *, of_all_ranks: bool, synchronises: bool) -> None:
        """A collective has ended that the rank could only wait for."""
        is_aside = self._clock.is_aside()
        # In another queue only its start is marked, which tells nothing of when the ranks left it.
        slot = self._slot(synchronises and not is_aside) if of_all_ranks else NO_SLOT
        if is_aside:
            self._note(began, LAUNCH, slot)
            return
        self._note(began, BEGIN, slot)
        self._note(self._clock.mark(), END, slot)

    def launched(self, began: Any, *, of_all_ranks: bool) -> tuple[int, int]:
        """A collective goes on beside the rank's work."""
        slot = self._slot(False) if of_all_ranks else NO_SLOT
        self._note(began, LAUNCH, slot)
        return slot, self._stretches

    def waited(self, launch: tuple[int, int], began: Any) -> None:
        """The rank has waited for what it launched; in another stretch than that of the launch nobody knows any more who came late."""
        slot, stretch = launch
        if self._clock.is_aside():
            return
        if stretch != self._stretches and slot >= 0:
            slot = NO_SLOT
        self._note(began, BEGIN, slot)
        self._note(self._clock.mark(), END, slot)

    def cut(self) -> Stretch:
        """Ends the stretch here and gives it. To be called at a log alone, where the host waits for the rank's work in any case."""
        self._marks.append((self._clock.mark(), self._phase, NO_SLOT))
        self._stretches += 1
        self._clock.finish()
        self._add_up(all_of_them=True)
        stretch = self._stretch
        end = self._last if self._last is not None else 0.0
        stretch.seconds = end - stretch.began
        stretch.counts = self._started
        self._started = [0] * REGIONS
        self._stretch = _fresh(end, stretch.capacities)
        self._clock.settle()
        return stretch

    def make_room(self, capacities: tuple[int, ...]) -> None:
        """From the next collective on there are so many slots by region, at least as many as before and the same on every rank; to be called after a cut.

        The collectives since then must be of training, whose slots come first and stay where they are.
        """
        synchronises = self._stretch.synchronises[: self._started[TRAINING]]
        self._stretch = _fresh(self._stretch.began, capacities)
        self._stretch.synchronises[: len(synchronises)] = synchronises
        self._firsts = _firsts(capacities)

    def _slot(self, synchronises: bool) -> int:
        region = region_of(self._phase)
        place = self._started[region]
        self._started[region] += 1
        if place >= self._stretch.capacities[region]:
            return SPILLED - region
        slot = self._firsts[region] + place
        self._stretch.synchronises[slot] = synchronises
        return slot

    def _note(self, mark: Any, code: int, slot: int) -> None:
        self._marks.append((mark, code, slot))
        if len(self._marks) >= MOST_MARKS:
            self._add_up(all_of_them=False)

    def _add_up(self, *, all_of_them: bool) -> None:
        """Reads marks from the oldest on, all or as many as are past; on an accelerator without waiting for one."""
        marks, clock, stretch = self._marks, self._clock, self._stretch
        while marks and (all_of_them or clock.is_past(marks[0][0])):
            mark, code, slot = marks.popleft()
            now, held_up = clock.seconds(mark), clock.held_up(mark)
            if code == LAUNCH:
                # In another queue it may lie before marks that were taken earlier, and it ends no phase.
                if slot >= 0:
                    stretch.came[slot] = stretch.waits_from[slot] = now
                continue
            if self._last is None:
                self._last, self._held_up = now, held_up
                stretch.began = now
            spent, self._last = now - self._last, now
            held_up, self._held_up = held_up - self._held_up, held_up
            if self._blocked_in is not None:
                self._charge_wait(self._blocked_in, spent)
            else:
                stretch.busy[self._read_phase] += spent
                stretch.held_up[self._read_phase] += held_up
            self._blocked_in = slot if code == BEGIN else None
            if code >= 0:
                self._read_phase = code
            elif code == BEGIN and slot >= 0:
                self._begin_wait(slot, now)

    def _begin_wait(self, slot: int, now: float) -> None:
        stretch = self._stretch
        if stretch.came[slot] == 0.0:
            stretch.came[slot] = now
        if stretch.waited[slot] == 0.0:
            stretch.waits_from[slot] = now

    def _charge_wait(self, slot: int, spent: float) -> None:
        stretch = self._stretch
        if slot == NO_SLOT:
            stretch.elsewhere += spent
        elif slot <= SPILLED:
            stretch.blocked[SPILLED - slot][1] += spent
        else:
            stretch.waited[slot] += spent
            region = SAVING if slot >= self._firsts[SAVING] else TRAINING
            stretch.blocked[EVALUATING if slot >= self._firsts[EVALUATING] else region][0] += spent


def _firsts(capacities: tuple[int, ...]) -> tuple[int, ...]:
    """The first slot of each region."""
    return tuple(sum(capacities[:region]) for region in range(REGIONS))
