"""What ended the ranks of a launch: of everything that was heard of all hosts, the one thing that the rest follows from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ftcore.spec.errors import INTERRUPT_STATUS_BASE, PREEMPTED, ClusterError, TrainingError
from launcher.backends.base import Launch
from launcher.backends.host_group import Ending
from launcher.children import Event
from launcher.failure import Failure, first_rank_failure, step_failure
from launcher.record import Record


def group_failure(record: Record, ending: Ending, launch: Launch) -> Failure | None:
    """The first failure; None when the run ended well, or as it was asked to."""
    if ending.is_stalled:
        return _stall(ending, launch)
    by_rank = first_rank_failure(record, launch.run_dir, launch.attempt)
    if by_rank is not None and not by_rank.lost_peer and not (ending.lost and ending.lost_at < by_rank.time):
        return by_rank
    refused = next((event for event in record.errors if event.get("rank") is None), None)
    if refused is not None:
        return step_failure(f"the supervisor on {refused.get('host')}", int(refused.get("exit_status", 1)), record, _log(launch, str(refused.get("host"))))
    if ending.lost:
        return _lost(ending, launch)
    left = next((event for event in record.rank_exits if event["status"] == 0 and by_rank is not None and event["heard"] < by_rank.time), None)
    if left is not None and not ending.is_preempted:
        return _left(left, launch)
    if ending.is_preempted and not ending.saved_late:
        # A rank that was still loading ends at once, and the others miss it: nothing is lost.
        return None if by_rank is None or by_rank.lost_peer else by_rank
    if by_rank is not None:
        return by_rank
    bad = [(host, status) for host, status in ending.statuses.items() if status not in (0, PREEMPTED)]
    if not bad:
        return None
    failure = step_failure(f"the supervisor of the ranks on {bad[0][0]}", bad[0][1], record, _log(launch, bad[0][0]))
    return replace(failure, is_infrastructure=bad[0][1] > INTERRUPT_STATUS_BASE)


def _lost(ending: Ending, launch: Launch) -> Failure:
    host, why = next(iter(ending.lost.items()))
    others = [f"{name}: {reason}" for name, reason in ending.lost.items() if name != host]
    return Failure(
        who=f"host {host}",
        verb="was lost",
        status=ClusterError.exit_status,
        log=_log(launch, host),
        time=ending.lost_at,
        details=(why, *others),
        hints=(f"look at the host: ftlaunch doctor --hosts {launch.run_dir.hostfile}",),
        is_infrastructure=True,
    )


def _left(exited: Event, launch: Launch) -> Failure:
    """A rank that ended before the others had done, as if its work were: what the others say of it is a consequence."""
    rank = int(exited["rank"])
    return Failure(
        who=f"rank {rank} on {exited.get('host')}",
        verb="left before the training was done",
        status=1,
        log=launch.run_dir.rank_log(launch.attempt, rank),
        time=exited["heard"],
        details=("it ended with exit status 0, and the others miss it",),
    )


def _stall(ending: Ending, launch: Launch) -> Failure:
    cluster = launch.resolved.spec.cluster
    what = f"no rank made progress for {cluster.stall_timeout:g} s (cluster.stall_timeout)"
    hint = "the rank that is elsewhere than the others is the one they wait for; its whole stack is in the folder above"
    if ending.is_starting:
        what = f"not every rank had begun to work {cluster.start_timeout:g} s after the start (cluster.start_timeout)"
        hint = "a rank that still imports is slow, or waits for a disk: raise cluster.start_timeout, or look at its stack in the folder above"
    details = [f"{what}; where each was, and had last made progress:"]
    for rank in range(launch.resolved.world_size):
        place = ending.stacks.get(rank, "its stack could not be had")
        details.append(f"  rank {rank} on {host_of(rank, launch)}: {place}; {ending.stall_places.get(rank, 'before its first sign of progress')}")
    stacks = launch.run_dir.attempt_logs(launch.attempt) / "stacks"
    return Failure(
        who="the run",
        verb="hung",
        status=TrainingError.exit_status,
        log=stacks,
        time=0.0,
        details=tuple(details),
        hints=(hint,),
        is_infrastructure=True,
    )


def host_of(rank: int, launch: Launch) -> str:
    """The host of a rank, by the run's hosts."""
    first = 0
    for host in launch.hosts:
        first += host.slots
        if rank < first:
            return host.name
    return "?"


def _log(launch: Launch, host: str) -> Path:
    names = [each.name for each in launch.hosts]
    rank = names.index(host) if host in names else 0
    return launch.run_dir.attempt_logs(launch.attempt) / f"node_{rank}.log"
