from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcore.spec.errors import SpecError
from launcher.combinations.verdict import REFUSED_WORD, verdict
from launcher.memory.accelerators import GIB, find_accelerator
from launcher.memory.capacity import Capacity
from launcher.memory.choices import Choice, apply, as_options, assignments, choice_of, way_of, ways
from launcher.memory.fit import shortages
from launcher.memory.ledger import build_ledger
from launcher.memory.recommend import Recommendation, recommend
from launcher.memory.recommend_text import recommendation_facts, render_recommendation
from launcher.memory.search import TIE
from tests.unit.planned_runs import llama, run

SMALL = llama(layers=8, hidden=2048, intermediate=8192)


def room(gpu: str = "h100-80", host_gib: float | None = None, hosts: tuple[str, ...] = ("host0",)) -> Capacity:
    accelerator = find_accelerator(gpu)
    host = None if host_gib is None else int(host_gib * GIB)
    return Capacity(
        accelerator=accelerator, device_bytes=accelerator.usable_bytes, device_origin="--gpu", host_bytes=dict.fromkeys(hosts, host), disk_bytes=None
    )


def test_an_8b_model_on_80_gib():
    resolved, shape = run(budget=16384), llama()
    found = recommend(resolved, shape, room())
    assert [each.place for each in found.own_shortages] == ["device"]
    best = found.options[0]
    assert best.choice.way.stage in (2, 3) and best.changes and best.free_share >= 0.1
    text = render_recommendation(found)
    assert text.index("1. ") < text.index("not offered:") and f"select it: {as_options(best.changes)}" in text
    assert "the fastest that fits" in text and "ZeRO-0" in text.partition("not offered:")[2]
    facts = recommendation_facts(found)
    assert facts["options"][0]["changes"] == best.changes and facts["spec"]["lacks"]


def test_what_a_way_lacks_is_said_in_numbers():
    # Adam's state of 8e9 parameters on one accelerator: 128 GB.
    found = recommend(run(ranks=1), llama(), room())
    lacks = {each.label: each.why for each in found.rejected}
    assert "GiB over on rank 0, " in lacks["ZeRO-2"] and "%" in lacks["ZeRO-2"]
    assert "stage 0" in lacks["ZeRO-0"]
    assert all(option.choice.way.offload_optimizer == "cpu" for option in found.options)
    # Master, moments and a pinned gradient of 8e9 parameters: what an option takes of the host stands beside what it takes of the device.
    assert min(recommendation_facts(found)["options"][0]["host_bytes"].values()) > 100 * GIB
    assert "GiB on a host" in render_recommendation(found)


def test_host_memory_bounds_offload():  # J05
    found = recommend(run(ranks=1), llama(), room(host_gib=64))
    lacks = {each.label: each.why for each in found.rejected}
    assert not found.options and "main memory of the host" in lacks["ZeRO-2, optimizer on the host"]
    assert "nothing that was weighed fits" in render_recommendation(found)


def test_fewer_bits_only_for_adapters_and_never_first():
    found = recommend(run(ranks=1, method="lora"), llama(), room("4090"))
    assert {option.choice.way.base for option in found.options} >= {"whole", "4"}
    bases = [option.choice.way.base for option in found.options]
    assert bases == sorted(bases, key=lambda base: base != "whole")
    assert all(option.changes["method.type"] == "qlora" for option in found.options if option.choice.way.base == "4")
    without = recommend(run(ranks=1, method="lora"), llama(), room("4090"), quantise=False)
    assert {option.choice.way.base for option in without.options} == {"whole"}
    assert {way.base for way in ways(run().spec, quantise=False)} == {"whole"}


def test_a_spec_that_fits_comes_first_where_nothing_is_faster():
    found = recommend(run(stage=2, samples=8, budget=2048), SMALL, room())
    assert not found.own_shortages and found.options[0].changes == {}
    assert "this is the spec as it is" in render_recommendation(found)


def test_what_a_launch_would_refuse_is_not_offered():
    from ftcore.spec.errors import Problem

    found = recommend(run(), SMALL, room(), check=lambda changes: [Problem(what="not that", where="x")] if "zero.stage" in changes else [])
    assert all("zero.stage" not in option.changes for option in found.options) and found.options
    assert any("not that" in each.why for each in found.rejected)


def test_without_an_accelerator_there_is_nothing_to_recommend():
    unknown = Capacity(accelerator=None, device_bytes=None, device_origin="not known", host_bytes={}, disk_bytes=None)
    with pytest.raises(SpecError) as caught:
        recommend(run(), SMALL, unknown)
    assert "--gpu" in caught.value.problems[0].fix


def test_a_choice_as_options():
    resolved = run(method="lora")
    choice = Choice(way=dataclasses.replace(way_of(resolved.spec), stage=3, offload_param="cpu", base="4"), recomputed="full", micro_batch_tokens=8192)
    changes = assignments(resolved.spec, choice)
    assert as_options(changes) == (
        "--zero 3 --set zero.offload_param=cpu --set method.type=qlora --set train.gradient_checkpointing=full --set batch.micro_batch_tokens=8192"
    )
    assert choice_of(apply(resolved, choice).spec) == choice
    assert apply(resolved, choice_of(resolved.spec)).spec == resolved.spec
    assert assignments(resolved.spec, choice_of(resolved.spec)) == {}


def test_coalescing_follows_the_stage_unless_it_was_given():
    offloaded = Choice(way=dataclasses.replace(way_of(run().spec), offload_optimizer="cpu"), recomputed="none", micro_batch_tokens=4096)
    assert apply(run(), offloaded).spec.zero.coalesce_grad_reduction is False
    given_one = dataclasses.replace(run(), sources={"zero.coalesce_grad_reduction": "a.yaml:3"})
    assert apply(given_one, offloaded).spec.zero.coalesce_grad_reduction is True


CASES = st.tuples(
    st.sampled_from(["full", "lora", "qlora"]),
    st.integers(0, 3),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([512, 2048]),
    st.sampled_from([2048, 8192]),
    st.sampled_from([2, 4, 8, 16, 40]),
    st.sampled_from([None, 8.0, 64.0]),
)


def _weigh(case: tuple, gib: float) -> tuple[Recommendation, object, Capacity]:
    method, stage, ranks, length, budget, _, host_gib = case
    resolved = run(ranks=ranks, method=method, stage=stage, length=length, budget=budget, samples=32)
    capacity = room(f"4090:{gib}", host_gib)
    return recommend(resolved, SMALL, capacity), resolved, capacity


@settings(max_examples=12, deadline=None)
@given(CASES)
def test_offers_fit_and_are_allowed_and_more_memory_is_never_slower(case):
    less, resolved, capacity = _weigh(case, case[5])
    more, _, _ = _weigh(case, 2 * case[5])
    for option in less.options:
        candidate = apply(resolved, option.choice)
        assert not shortages(candidate, build_ledger(candidate, SMALL), capacity)
        assert verdict(candidate.spec).word != REFUSED_WORD
        assert option.changes == assignments(resolved.spec, option.choice)
    labels = [option.choice.way for option in less.options]
    assert len(labels) == len(set(labels))
    if less.options:
        whole = [[option.forecast.total_s for option in each.options if option.choice.way.base == less.options[0].choice.way.base] for each in (less, more)]
        assert min(whole[1]) <= min(whole[0]) * TIE
