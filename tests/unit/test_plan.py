"""The plan counts what the run will do, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ftcore.batch.deal import deal
from ftcore.batch.plan import make_plan
from ftcore.batch.precision import describe_precision
from ftcore.batch.window import UpdateSequence
from ftcore.data.cache import Counts, write_samples
from ftcore.data.mix import SampleMix
from ftcore.data.prepared import ModelSource, Prepared, PreparedSet
from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.sections import ParameterGroup
from tests.ranks.specs import make_spec, with_section

LENGTHS = [5, 9, 30, 31, 40, 7, 12, 22, 18, 3, 3]


@pytest.fixture
def samples(tmp_path: Path) -> SampleMix:
    ids = [np.arange(length, dtype=np.int32) for length in LENGTHS]
    spans = [[(length - 2, length)] for length in LENGTHS]
    counts = Counts(rows=14, tokens=sum(LENGTHS), supervised_tokens=2 * len(LENGTHS), dropped={"overlong": 2, "no_supervised_tokens": 1}, dropped_tokens=500)
    write_samples(tmp_path / "samples.arrow", ids, spans, list(range(1, len(ids) + 1)), counts)
    return SampleMix.open({"train": tmp_path / "samples.arrow"})


def test_counts(samples: SampleMix, tmp_path: Path) -> None:
    spec = make_spec(3, updates=4, budget=40)
    resolved = ResolvedSpec(spec=spec, hosts=(Host(name="a", slots=2), Host(name="b", slots=2)), sources={}, cache_dir=str(tmp_path))
    counts = samples.sets[0].counts
    prepared_set = PreparedSet(
        arrow="", samples=len(samples), rows=14, tokens=counts.tokens, supervised_tokens=22, dropped=counts.dropped, dropped_tokens=500, truncated=1
    )
    source = ModelSource(path=str(tmp_path), revision="", digest="", name="", trust_remote_code=False)
    plan = make_plan(resolved, samples, {"eval": samples}, Prepared(train={"train": prepared_set}, eval={}, model=source))
    assert not plan.notes
    sequence = UpdateSequence(samples, batch=spec.batch, train=spec.train)
    deals = [
        deal(samples.lengths[sequence.window(update).sample_ids], world_size=4, micro_batch_tokens=40, attention_share=plan.attention_share)
        for update in range(4)
    ]
    fillers = sum(1 for dealt in deals for parts in dealt.parts for part in parts if not len(part))
    assert (plan.total_updates, plan.world_size, plan.zero_stage, plan.rows, plan.samples) == (4, 4, 3, 14, 11)
    assert (plan.tokens, plan.tokens_read, plan.supervised_tokens, plan.eval_supervised_tokens) == (180, 680, 22, {"eval": 22})
    assert (plan.micro_steps_min, plan.micro_steps_max) == (min(d.micro_steps for d in deals), max(d.micro_steps for d in deals))
    assert plan.filler_rows == plan.padding_tokens == fillers > 0
    assert plan.epochs == pytest.approx(2.0)
    text = plan.render()
    assert "2 overlong" in text and "1 no_supervised_tokens" in text and "680 = 180 trained on + 500 dropped or cut off" in text
    assert json.loads(plan.to_json())["fill"] == plan.fill <= 1


@pytest.mark.parametrize(("stage", "method", "is_told"), [(3, "qlora", True), (2, "qlora", False), (3, "lora", False)])
def test_a_quantised_base_in_stage_3_is_first_whole_on_each_rank(stage: int, method: str, is_told: bool, samples: SampleMix, tmp_path: Path) -> None:
    """G09: the peak of memory while loading is the whole base, and plan.txt says so."""
    counts = samples.sets[0].counts
    prepared = PreparedSet(arrow="", samples=len(samples), rows=14, tokens=counts.tokens, supervised_tokens=22)
    source = ModelSource(path=str(tmp_path), revision="", digest="", name="", trust_remote_code=False)
    spec = make_spec(stage, method=method, updates=4)
    resolved = ResolvedSpec(spec=spec, hosts=(Host(name="a", slots=2),), sources={}, cache_dir=str(tmp_path))
    text = make_plan(resolved, samples, {}, Prepared(train={"train": prepared}, eval={}, model=source)).render()
    assert ("each rank first loads the whole quantised base" in text) == is_told


@pytest.mark.parametrize(
    ("precision", "words"),
    [("fp32", "float32"), ("bf16", "bfloat16; master weights"), ("fp16", "float16 with a dynamic"), ("bf16_autocast", "matrix products in bfloat16")],
)
def test_numeric_types_are_told(precision: str, words: str) -> None:
    """G06: what is trained, and in which type, stands in the plan."""
    assert words in describe_precision(with_section(make_spec(2), "train", precision=precision))
    quantised = with_section(make_spec(2, method="lora"), "method", type="qlora", bits=8)
    assert describe_precision(quantised).endswith("linear layers of the base in 8 bits")
    typed = with_section(quantised, "method", bits=4, storage_dtype="bfloat16", compute_dtype="float32")
    assert describe_precision(typed).endswith("in nf4, 4 bits, stored as bfloat16, computed in float32")
    groups = (ParameterGroup(pattern="*head*", keep_in_fp32=True),)
    kept = with_section(make_spec(2), "optimizer", type="adamw_8bit", parameter_groups=groups)
    assert describe_precision(kept).endswith("; moments of hidden matrices in 8 bits; *head* computed in float32")
