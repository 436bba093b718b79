"""The time of an update on so many ranks: by the accelerator's rates, or tied to a measured speed."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass

from ftcore.spec.deals import Dealt
from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.accelerators import Accelerator
from launcher.memory.items import Ledger
from launcher.memory.ledger import build_ledger
from launcher.memory.network import network_of
from launcher.memory.roofline import UpdateTime, update_time
from launcher.memory.traffic import traffic_of
from launcher.memory.work import Portion, cut_update, work_of
from launcher.simulation.anchor import Anchor
from launcher.simulation.dealt import deal_by_lengths
from launcher.simulation.setting import Setting
from launcher.simulation.sized import sized

LEAST_LEFT = 0.2
"""Of the expected computing, what an anchor's speed must leave after its collectives to be split into the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """An update of one point."""

    resolved: ResolvedSpec
    ledger: Ledger
    dealt: Dealt
    update: UpdateTime
    idle_s: float
    """What the mean rank waits for the one with the dearest samples."""
    ideal_s: float
    """What the model's operations (recomputed ones not counted) would take at the data sheet's rate."""
    portion: Portion
    """An average update."""

    @property
    def total_s(self) -> float:
        """Of an update."""
        return self.update.total_s + self.idle_s


def timed(setting: Setting, ranks: int, stage: int) -> Timed:
    """The update of a point by the data sheet's rates and what training reaches of them.

    The mean rank's computing, the wait for the dearest rank by the deal, and collectives by the micro-steps of the deal.
    """
    resolved = sized(setting, ranks, stage)
    spec, shape, lengths = resolved.spec, setting.shape, setting.data.train
    ledger = build_ledger(resolved, shape, on_cpu=setting.accelerator.is_host)
    dealt = setting.dealt.get(ranks) or deal_by_lengths(resolved, shape, lengths)
    work = work_of(resolved, shape, lengths, ledger.trained)
    traffic = traffic_of(resolved, shape, ledger.trained, max(1, round(dealt.micro_steps)))
    accelerator = rates_of(setting, ranks)
    update = update_time(spec, work, traffic, accelerator, network_of(resolved, accelerator))
    waits = dealt.step_imbalance if spec.zero.stage == 3 else dealt.imbalance
    idle = (update.compute_s + update.memory_s) * max(0.0, waits - 1)
    return Timed(
        resolved=resolved,
        ledger=ledger,
        dealt=dealt,
        update=update,
        idle_s=idle,
        ideal_s=update.mfu * update.total_s,
        portion=cut_update(spec, ranks, lengths),
    )


def rates_of(setting: Setting, ranks: int) -> Accelerator:
    """The accelerator; of a CPU whose ranks keep fewer cores busy than there are, those cores."""
    accelerator = setting.accelerator
    if not accelerator.is_host or setting.cores_per_rank is None:
        return accelerator
    share = min(1.0, ranks * setting.cores_per_rank / len(os.sched_getaffinity(0)))
    names = ("bf16_flops", "fp16_flops", "fp32_flops", "memory_bandwidth")
    return dataclasses.replace(accelerator, **{name: getattr(accelerator, name) * share for name in names})


def tied(setting: Setting, point: Timed, anchor: Anchor) -> Timed:
    """The point with its computing as many times as long as the anchor's was measured to be: what is no communication there, over what was expected."""
    at = timed(as_measured(setting, anchor), anchor.ranks, anchor.stage)
    seconds = at.portion.tokens / anchor.tokens_per_s
    expected, measured = at.total_s - at.update.communication_s, seconds - at.update.communication_s
    if measured < LEAST_LEFT * expected:
        # Faster than its own collectives were thought to be: they tell nothing, and all of it is scaled.
        return _scaled(point, seconds / at.total_s, ("compute_s", "memory_s", "launch_s", "offload_s", "communication_s"))
    return _scaled(point, measured / expected, ("compute_s", "memory_s", "launch_s", "offload_s"))


def is_of(setting: Setting, anchor: Anchor, ranks: int, stage: int) -> bool:
    """Whether the anchor is a measurement of that point itself: on its ranks, in its stage, with its updates."""
    return (anchor.ranks, anchor.stage) == (ranks, stage) and as_measured(setting, anchor) is setting


def as_measured(setting: Setting, anchor: Anchor) -> Setting:
    """The setting with the anchor's own updates: larger ones than the point's spend a smaller share of their time on collectives."""
    batch, own = setting.resolved.spec.batch, (anchor.global_batch_size, anchor.tokens_per_update)
    asked = sized(setting, anchor.ranks).spec.batch
    if own in ((None, None), (asked.global_batch_size, asked.tokens_per_update)):
        return setting
    batch = dataclasses.replace(batch, global_batch_size=own[0], tokens_per_update=own[1])
    spec = dataclasses.replace(setting.resolved.spec, batch=batch)
    return dataclasses.replace(setting, resolved=dataclasses.replace(setting.resolved, spec=spec), mode="strong", dealt={})


def _scaled(point: Timed, factor: float, names: tuple[str, ...]) -> Timed:
    parts = {name: getattr(point.update, name) * factor for name in names}
    return dataclasses.replace(point, update=dataclasses.replace(point.update, **parts), idle_s=point.idle_s * factor)
