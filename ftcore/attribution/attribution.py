"""Where a rank's time goes and who makes it wait: measured on each rank, told at a logged update by the one collective that sums the losses too."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ftcore.attribution import exchange
from ftcore.attribution.clocks import Clock, clock_of, host_clock_id
from ftcore.attribution.phases import BUSY, OTHER
from ftcore.attribution.timeline import Timeline
from ftcore.attribution.told import Told, ToldPhases
from ftcore.collective_calls import forget, listen
from ftcore.dist import Ranks, gather_objects, gather_rows, sum_over_ranks


class Attribution:
    """The phases of one rank. Every rank makes one and tells at the same updates."""

    def __init__(
        self,
        ranks: Ranks,
        *,
        measures: bool,
        holders: tuple[Any, ...] = (),
        named: Callable[[str], None] = lambda name: None,
        clock: Clock | None = None,
        clock_id: str | None = None,
    ) -> None:
        """One collective. Without `measures` nothing is measured, and telling sums the values alone. `holders` as `ftcore.collective_calls.listen` has them.

        `named` is told the name of each phase that begins, measured or not. `clock` and its name: this rank's own, unless given.
        """
        self._ranks, self._holders = ranks, holders
        places = gather_objects((socket.gethostname(), clock_id or host_clock_id()), ranks)
        self.hosts = tuple(host for host, _ in places)
        """Of each rank."""
        self._clocks = tuple(name for _, name in places)
        self._capacities: tuple[int, ...] = exchange.LEAST_SLOTS
        self._clock = (clock or clock_of(ranks.device)) if measures else None
        self._timeline: Timeline | None = None
        self._phase, self._updates, self._cost = OTHER, 0, 0.0
        self.told: ToldPhases | None = None
        """What `tell` brought last; None: nothing yet, or nothing is measured."""
        self._named = named

    def listen(self) -> None:
        """Takes the collectives of this process from now on, until `close` or until another one takes them; the first stretch begins with the first call."""
        if self._clock is None:
            return
        if self._timeline is None:
            self._timeline = Timeline(self._clock, self._ranks.world_size, self._capacities)
        listen(self._timeline, self._holders)

    def close(self) -> None:
        """Leaves torch as it was; what is measured until another `listen` is phases alone."""
        if self._timeline is not None:
            forget(self._timeline)

    def switch(self, phase: int) -> int:
        """From now on the rank is busy with `phase`, a place in BUSY; returns what it was busy with."""
        before, self._phase = self._phase, phase
        if phase != before:
            self._named(BUSY[phase])
            if self._timeline is not None:
                self._timeline.switch(phase)
        return before

    @contextmanager
    def during(self, phase: int) -> Iterator[None]:
        """`phase` for a block; afterwards what was before."""
        before = self.switch(phase)
        try:
            yield
        finally:
            self.switch(before)

    def count(self, cost: float) -> None:
        """An update is done that was planned to cost this rank so much."""
        self._updates += 1
        self._cost += cost

    def tell(self, values: Sequence[float]) -> Told:
        """Sums over the ranks of `values`, as many on each, and all ranks' time since the last call. Every rank calls it; one collective."""
        if self._timeline is None:
            return Told(sums=sum_over_ranks(values, self._ranks) if values else [], phases=None)
        stretch = self._timeline.cut()
        row = exchange.to_row(stretch, values, cost=self._cost, updates=self._updates)
        told, counts = exchange.from_rows(gather_rows(row, self._ranks), len(values), stretch, hosts=self.hosts, clocks=self._clocks)
        self._updates, self._cost, self.told = 0, 0.0, told.phases
        self._capacities = exchange.more_slots(self._capacities, counts)
        self._timeline.make_room(self._capacities)
        return told
