"""Tells one listener of each collective that this process starts, whoever starts it: DeepSpeed, torch or we.

DeepSpeed 0.19.8 reaches torch in two ways (comm/torch.py): by `torch.distributed.NAME` at each call, and by two functions that its backend keeps from its
start (`all_gather_function`, `reduce_scatter_function`). torch's own functions of objects call others by their name in `distributed_c10d`. So the functions
are replaced in both modules and in whatever else is named as a holder of them, only while somebody listens. Groups of `ftcore.dist.HostGroup` belong to
threads beside the training and are left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, Protocol

import torch.distributed as torch_dist

from ftcore.dist import is_aside

SYNCHRONISING = (
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "_all_gather_base",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "_reduce_scatter_base",
)
"""No rank leaves one of these before the last one has come."""
ROOTED = ("broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "reduce", "scatter", "scatter_object_list")
"""Some ranks may leave these early."""

Function = Callable[..., Any]


class Listener(Protocol):
    """What is told of collectives."""

    inside: bool
    """Kept by this module: the collectives that one is made of aren't told."""
    world_size: int

    def mark(self) -> Any:
        """A point in time."""

    def blocked(self, began: Any, *, of_all_ranks: bool, synchronises: bool) -> None:
        """A collective that began then has ended, and this rank could do nothing meanwhile."""

    def launched(self, began: Any, *, of_all_ranks: bool) -> Any:
        """A collective goes on beside the rank's own work; gives what `waited` is to be told."""

    def waited(self, launch: Any, began: Any) -> None:
        """This rank has waited since `began` for the collective of that launch."""


class ToldWork:
    """A handle of torch's that tells how long somebody waited for it; all else is the handle's own."""

    __slots__ = ("_launch", "_listener", "_work")

    def __init__(self, work: Any, listener: Listener, launch: Any) -> None:
        self._work, self._listener, self._launch = work, listener, launch

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """As torch's."""
        listener = self._listener
        began = listener.mark()
        result = self._work.wait(*args, **kwargs)
        listener.waited(self._launch, began)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


_names: dict[Any, str] = {getattr(torch_dist.distributed_c10d, name, None): name for name in (*SYNCHRONISING, *ROOTED)}
"""torch's functions; names that this version of torch lacks have none."""


class _Hearing:
    """Who hears of the collectives of this process, and what was replaced for it."""

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self.replaced: list[tuple[Any, str, Function]] = []
        """(holder, attribute, what it was)."""
        self.told: dict[Function, Function] = {}
        """What each was replaced by; kept, since those who listen may take turns."""

    def replace_in(self, holder: Any) -> None:
        for attribute, value in list(vars(holder).items()):
            # Not isinstance: torch keeps an object here that warns of its age when it is asked for its class.
            if type(value) is FunctionType and value in _names:
                self.replaced.append((holder, attribute, value))
                if value not in self.told:
                    self.told[value] = _told(value, synchronises=_names[value] in SYNCHRONISING)
                setattr(holder, attribute, self.told[value])

    def restore(self) -> None:
        while self.replaced:
            holder, name, original = self.replaced.pop()
            setattr(holder, name, original)


_hearing = _Hearing()


def listen(listener: Listener, holders: tuple[Any, ...] = ()) -> None:
    """From now on `listener`, and no other, hears of the collectives of this process. `holders` are objects that keep functions of torch's as attributes."""
    if _hearing.listener is listener:
        return
    _hearing.restore()
    _hearing.listener = listener
    for holder in (torch_dist, torch_dist.distributed_c10d, *holders):
        _hearing.replace_in(holder)


def forget(listener: Listener) -> None:
    """Leaves torch as it was, unless another one listens by now."""
    if _hearing.listener is listener:
        _hearing.listener = None
        _hearing.restore()


def _told(original: Function, *, synchronises: bool) -> Function:
    place = list(inspect.signature(original).parameters).index("group")

    def told(*args: Any, **kwargs: Any) -> Any:
        listener = _hearing.listener
        if listener is None or listener.inside:
            return original(*args, **kwargs)
        group = kwargs["group"] if "group" in kwargs else args[place] if len(args) > place else None
        if is_aside(group):
            return original(*args, **kwargs)
        listener.inside = True
        began = listener.mark()
        try:
            work = original(*args, **kwargs)
        finally:
            listener.inside = False
        # What torch hands to a rank that is in no group has no size.
        of_all = group is None or (hasattr(group, "size") and group.size() == listener.world_size)
        if work is None:
            listener.blocked(began, of_all_ranks=of_all, synchronises=synchronises)
            return None
        return ToldWork(work, listener, listener.launched(began, of_all_ranks=of_all))

    return told
