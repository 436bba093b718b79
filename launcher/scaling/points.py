"""The points of a scaling test: each the same short run, on so many ranks and in one ZeRO stage. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ftcore.spec.cluster import SchedulerSection
from ftcore.spec.errors import Problem, SpecError
from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.sections import BatchSection, LoggingSection
from launcher.memory.pilot import pilot_spec
from launcher.resolve import in_other_stage
from launcher.scaling.machines import THREADS, Machines, Share, share_of, take_hosts
from launcher.scaling.request import STRONG, WEAK, ScaleRequest
from launcher.submission.request import allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A point that is to be measured."""

    name: str
    ranks: int
    stage: int
    whole: ResolvedSpec
    """The run that the point stands for: on its hosts, in its stage, with its updates, to its end."""
    cut: ResolvedSpec
    """What is really run: the first updates of that."""
    threads: int | None
    share: Share
    scheduler: SchedulerSection | None
    """Of its job; None: it is started from here."""


def point_name(ranks: int, stage: int) -> str:
    """The point's name, and that of its folder."""
    return f"w{ranks}-zero{stage}"


def plan_points(request: ScaleRequest, machines: Machines, threads: int | None) -> tuple[Wanted, ...]:
    """Every point that is asked for, by stage and then by ranks, refused ones too. Raises SpecError for ranks that are no whole hosts of a job."""
    return tuple(make_point(request, machines, threads, ranks, stage) for stage in request.stages for ranks in request.ranks)


def make_point(request: ScaleRequest, machines: Machines, threads: int | None, ranks: int, stage: int) -> Wanted:
    """One point."""
    scheduler = job_shape(request.scheduler, ranks) if request.scheduler is not None else None
    hosts = allocation(scheduler) if scheduler is not None else take_hosts(machines, ranks)
    whole = whole_spec(request, hosts, stage, scheduler)
    share = job_share(request, ranks, threads) if scheduler is not None else share_of(machines, hosts, threads)
    cut = cut_spec(whole, request, threads)
    return Wanted(name=point_name(ranks, stage), ranks=ranks, stage=stage, whole=whole, cut=cut, threads=threads, share=share, scheduler=scheduler)


def whole_spec(request: ScaleRequest, hosts: tuple[Host, ...], stage: int, scheduler: SchedulerSection | None) -> ResolvedSpec:
    """The spec on these hosts and in this stage; in weak mode with an update that grows with the ranks, from the spec's own on the fewest ranks."""
    spec, ranks = request.resolved.spec, sum(host.slots for host in hosts)
    cluster = replace(spec.cluster, slots=ranks if spec.cluster.slots is not None else None)
    if scheduler is not None:
        cluster = replace(cluster, scheduler=scheduler)
    batch = grown(spec.batch, ranks, min(request.ranks)) if request.mode == WEAK else spec.batch
    return replace(request.resolved, spec=replace(spec, zero=in_other_stage(spec, stage), cluster=cluster, batch=batch), hosts=hosts)


def grown(batch: BatchSection, ranks: int, base: int) -> BatchSection:
    """An update of ranks / base times the size; micro-steps keep their budget. Raises SpecError where that is no whole number."""
    sizes = {name: getattr(batch, name) for name in ("global_batch_size", "tokens_per_update")}
    parts = {name: divmod(size * ranks, base) for name, size in sizes.items() if size is not None}
    odd = [name for name, (_, rest) in parts.items() if rest]
    if odd:
        what = f"the spec's update of {sizes[odd[0]]:,}, on {base} ranks, does not grow to {ranks} ranks by a whole number"
        raise SpecError(what, where=f"batch.{odd[0]}", fix=f"give a size that {base} divides, or numbers of ranks that are multiples of {base}")
    return replace(batch, **{name: size for name, (size, _) in parts.items()})


def cut_spec(whole: ResolvedSpec, request: ScaleRequest, threads: int | None) -> ResolvedSpec:
    """The first updates of the run, as `ftlaunch pilot` cuts them; in strong mode without dropout, which would draw other masks on other ranks."""
    short = pilot_spec(whole, request.updates)
    spec = short.spec
    method = replace(spec.method, lora_dropout=0.0) if request.mode == STRONG else spec.method
    environment = {**spec.cluster.environment, **({THREADS: str(threads)} if threads is not None else {})}
    logging = LoggingSection(logging_steps=1)
    return replace(short, spec=replace(spec, method=method, logging=logging, cluster=replace(spec.cluster, environment=environment)))


def job_shape(scheduler: SchedulerSection, ranks: int) -> SchedulerSection:
    """The hosts of a job of so many ranks: part of one, or several whole ones. Raises SpecError where they are neither."""
    slots = scheduler.slots_per_node or 1
    nodes, rest = divmod(ranks, slots)
    if ranks <= slots:
        return replace(scheduler, nodes=1, slots_per_node=ranks)
    if rest:
        fix = f"give up to {slots} ranks, or multiples of {slots}"
        raise SpecError([Problem(what=f"{ranks} ranks are no whole hosts of {slots} slots", where="--ranks", fix=fix)])
    return replace(scheduler, nodes=nodes)


def job_share(request: ScaleRequest, ranks: int, threads: int | None) -> Share:
    """A job gets what it asks for: an accelerator a rank, or with CPU ranks a core a rank."""
    if not request.on_cpu:
        return Share(accelerators=ranks, cores=None, oversubscribed=False, devices=ranks)
    return Share(accelerators=None, cores=ranks, oversubscribed=(threads or 1) > 1, devices=ranks)
