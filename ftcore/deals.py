"""Deals the prepared samples of a spec to several numbers of ranks, for a simulation. `python -m ftcore.deals FOLDER`; there are resolved.json, deals.json.

Nothing is prepared and no model is read: it opens the files of samples that the launcher found named in the cache.
"""

from __future__ import annotations

import dataclasses
import json
import sys

import numpy as np

from ftcore.batch.cost import AttentionShare
from ftcore.batch.plan_counts import count_run
from ftcore.batch.window import UpdateSequence
from ftcore.data.mix import SampleMix
from ftcore.spec.deals import Case, DealsDir, Dealt, load_deals
from ftcore.spec.resolved import load_resolved
from ftcore.spec.run_dir import RunDir, write_atomic
from ftcore.spec.sections import Spec

COUNTED_SAMPLES = 200_000
"""Of each case: 0.2 s, and means that more samples change by less than a percent."""


def main(run_dir: RunDir) -> None:
    """Writes dealt.json. Raises DataError when a file of samples is damaged, or a sample is longer than a micro-step."""
    folder = DealsDir(run_dir.path)
    asked, spec = load_deals(folder.asked), load_resolved(run_dir.resolved).spec
    mix = SampleMix.open(asked.arrows)
    share = AttentionShare(full=asked.attention_share)
    found = [dealt(spec, mix, share, case) for case in asked.cases]
    write_atomic(folder.dealt, json.dumps([dataclasses.asdict(each) for each in found], indent=2) + "\n")


def dealt(spec: Spec, mix: SampleMix, share: AttentionShare, case: Case) -> Dealt:
    """The means over the first updates of the run on so many ranks. Raises DataError as `ftcore.batch.deal` does."""
    batch = dataclasses.replace(spec.batch, global_batch_size=case.global_batch_size, tokens_per_update=case.tokens_per_update)
    sequence = UpdateSequence(mix, batch=batch, train=spec.train, draws=spec.data.training)
    counts = count_run(sequence, mix, batch=batch, world_size=case.ranks, share=share, most_samples=COUNTED_SAMPLES).updates
    tokens = counts.tokens / counts.tokens.sum()
    return Dealt(
        ranks=case.ranks,
        updates=len(counts),
        micro_steps=float(counts.micro_steps.mean()),
        samples=float(counts.samples.mean()),
        tokens=float(counts.tokens.mean()),
        imbalance=float((counts.imbalance * tokens).sum()),
        step_imbalance=float((tokens / (1 - counts.waiting)).sum()),
        idle_ranks=float(np.maximum(0, case.ranks - counts.packs).mean()),
    )


if __name__ == "__main__":
    from ftcore.process import run_dir_argument, run_main

    run_main(main, run_dir_argument(sys.argv[1:]))
