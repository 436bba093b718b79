"""The run of a spec on another number of ranks."""

from __future__ import annotations

import dataclasses

from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.sections import BatchSection
from launcher.resolve import in_other_stage
from launcher.simulation.setting import Setting


def sized(setting: Setting, ranks: int, stage: int | None = None) -> ResolvedSpec:
    """The run on `ranks` ranks, `gpus_per_node` on a host; with another ZeRO stage if one is given. In weak mode its updates grow with the ranks."""
    resolved = setting.resolved
    spec = resolved.spec
    if stage is not None:
        spec = dataclasses.replace(spec, zero=in_other_stage(spec, stage))
    if setting.mode == "weak":
        spec = dataclasses.replace(spec, batch=grown(spec.batch, ranks, setting.base_ranks))
    if setting.fabric is not None:
        spec = dataclasses.replace(spec, hardware=dataclasses.replace(spec.hardware, inter_node_bandwidth=setting.fabric.node_bandwidth / 1e9))
    return dataclasses.replace(resolved, spec=spec, hosts=hosts_of(ranks, setting.gpus_per_node))


def hosts_of(ranks: int, gpus_per_node: int) -> tuple[Host, ...]:
    """As many full hosts as there are, and one with the rest."""
    full, rest = divmod(ranks, gpus_per_node)
    sizes = [gpus_per_node] * full + ([rest] if rest else [])
    return tuple(Host(name=f"node{number:02d}", slots=slots) for number, slots in enumerate(sizes))


def grown(batch: BatchSection, ranks: int, base_ranks: int) -> BatchSection:
    """The update of `base_ranks`, as many times as large as there are more ranks."""
    if batch.global_batch_size is not None:
        return dataclasses.replace(batch, global_batch_size=max(1, round(batch.global_batch_size * ranks / base_ranks)))
    return dataclasses.replace(batch, tokens_per_update=max(1, round((batch.tokens_per_update or 1) * ranks / base_ranks)))
