"""The time of an update on so many ranks: by the accelerator's rates, or tied to a measured speed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ftcore.spec.resolved import ResolvedSpec
from launcher.memory.items import Ledger
from launcher.memory.ledger import build_ledger
from launcher.memory.network import network_of
from launcher.memory.roofline import UpdateTime, update_time
from launcher.memory.traffic import traffic_of
from launcher.memory.work import work_of
from launcher.simulation.anchor import Anchor
from launcher.simulation.dealt import Dealt, deal_by_lengths
from launcher.simulation.setting import Setting
from launcher.simulation.sized import sized


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """An update of one point."""

    resolved: ResolvedSpec
    ledger: Ledger
    dealt: Dealt
    update: UpdateTime
    idle_s: float
    """What the other ranks wait for the one with the dearest samples."""
    model_flops: float
    """Of a rank, on average; recomputed ones not counted."""

    @property
    def total_s(self) -> float:
        """Of an update."""
        return self.update.total_s + self.idle_s


def timed(setting: Setting, ranks: int, stage: int) -> Timed:
    """The update of a point by the data sheet's rates and what training reaches of them."""
    resolved = sized(setting, ranks, stage)
    spec, shape, lengths = resolved.spec, setting.shape, setting.data.train
    ledger = build_ledger(resolved, shape, on_cpu=setting.accelerator.is_host)
    dealt = setting.dealt.get(ranks) or deal_by_lengths(resolved, shape, lengths)
    work = work_of(resolved, shape, lengths, ledger.trained)
    traffic = traffic_of(resolved, shape, ledger.trained, max(1, round(dealt.micro_steps)))
    update = update_time(spec, work, traffic, setting.accelerator, network_of(resolved, setting.accelerator))
    waits = dealt.step_imbalance if spec.zero.stage == 3 else dealt.imbalance
    idle = (update.compute_s + update.memory_s) * (waits - 1)
    return Timed(resolved=resolved, ledger=ledger, dealt=dealt, update=update, idle_s=idle, model_flops=work.model_flops)


def tied(setting: Setting, point: Timed, anchor: Anchor) -> Timed:
    """The point with its computing as many times as long as the anchor's was measured to be: what is no communication there, over what was expected."""
    at = timed(setting, anchor.ranks, anchor.stage)
    seconds = at.dealt.tokens / anchor.tokens_per_s
    expected, measured = at.total_s - at.update.communication_s, seconds - at.update.communication_s
    # A run that is faster than its own collectives tells nothing of them: all of it is scaled then.
    factor = measured / expected if measured > 0.2 * expected else seconds / at.total_s
    update = point.update
    scaled = {name: getattr(update, name) * factor for name in ("compute_s", "memory_s", "launch_s", "offload_s")}
    return dataclasses.replace(point, update=dataclasses.replace(update, **scaled), idle_s=point.idle_s * factor)
