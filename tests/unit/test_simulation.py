"""Simulated points: what they are made of, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os

import numpy as np
import pytest

from ftcore.batch.cost import AttentionShare, sample_costs
from ftcore.batch.deal import deal_many
from ftcore.spec.deals import Dealt
from ftcore.spec.errors import SpecError
from ftcore.spec.resolved import Host
from launcher.memory.accelerators import find_accelerator
from launcher.memory.cost import RunData
from launcher.memory.lengths import DataLengths
from launcher.simulation.dealt import attention_share, deal_by_lengths
from launcher.simulation.fabric import parse_network
from launcher.simulation.facts import simulation_facts
from launcher.simulation.points import point_of, set_against
from launcher.simulation.setting import Setting
from launcher.simulation.simulate import simulate
from launcher.simulation.sized import hosts_of, sized
from launcher.simulation.sweep import Question, simulate_all
from launcher.simulation.text import render_simulation
from launcher.simulation.timing import timed
from launcher.simulation.uncertainty import TIED, TIED_CPU, UNTIED, half_width
from tests.unit.planned_runs import llama, run

H100 = find_accelerator("h100-80")


def counted(samples: int = 100_000, histogram: dict[int, int] | None = None, length: int = 1000) -> DataLengths:
    """Lengths of samples, half of whose tokens are supervised."""
    bins = histogram or {length: samples}
    tokens, squares = (float(sum(count * bound**power for bound, count in bins.items())) for power in (1, 2))
    return DataLengths(
        samples=sum(bins.values()),
        tokens=tokens,
        supervised_tokens=tokens / 2,
        squares=squares,
        longest=max(bins),
        histogram=bins,
        origin="given",
        is_assumed=False,
    )


def setting(
    *, lengths: DataLengths | None = None, gpu: str = "h100-80", network: str = "8x400", stage: int = 3, samples: int = 1024, **more: object
) -> Setting:
    data = RunData(train=lengths or counted(), evaluated_tokens=0)
    resolved = run(stage=stage, samples=samples, budget=8192)
    return Setting(resolved=resolved, shape=llama(), accelerator=find_accelerator(gpu), data=data, fabric=parse_network(network), **more)


def question(**more: object) -> Question:
    given = {"resolved": run(stage=3, samples=1024), "origin": "spec.yaml", "shape": llama(), "accelerator": H100, "ranks": (64, 8, 512), "network": "8x400"}
    return Question(**{**given, **more})


@pytest.mark.parametrize(
    ("text", "gigabytes"),
    [("8x400", 400), ("8 x 200", 200), ("8X400Gb/s", 400), ("400GB/s", 400), ("3200Gbit/s", 400), ("3.2Tb/s", 400), ("2x50GB/s", 100), ("25Gbps", 3.125)],
)
def test_networks_as_people_write_them(text, gigabytes):
    assert parse_network(text).node_bandwidth == pytest.approx(gigabytes * 1e9)


@pytest.mark.parametrize("text", ["", "400", "8x", "x400", "fast", "0x400", "8x0", "-8x400", "8x400GiB", "400gb/s", "8x400x2", "1e3GB/s", "9" * 40 + "x400"])
def test_what_is_no_network(text):
    with pytest.raises(SpecError) as raised:
        parse_network(text)
    assert "--network" in str(raised.value) and "8x400" in str(raised.value)


@pytest.mark.parametrize(("mode", "less"), [("weak", "on 64, 512 ranks an update is smaller"), ("strong", "")])
def test_an_update_that_holds_all_the_data_is_told(mode, less, monkeypatch):
    data = RunData(train=counted(samples=2000), evaluated_tokens=0)
    monkeypatch.setattr("launcher.simulation.sweep.run_data", lambda resolved: data)
    found = simulate_all(question(mode=mode))
    assert [point.samples for point in found.points] == ([1024, 2000, 2000] if mode == "weak" else [1024] * 3)
    told = [note for note in found.notes if "holds all 2,000 samples" in note]
    assert [note.startswith(less) for note in told] == ([True] if less else [])
    assert ("the update of 8 ranks grows with the ranks" in render_simulation(found)) is (mode == "weak")


def test_more_ranks_take_more_device_time():
    of = {ranks: point_of(setting(), ranks, 3) for ranks in (8, 64, 512)}
    assert [each.nodes for each in of.values()] == [1, 8, 64] and all(each.samples == 1024 for each in of.values())
    for each in of.values():
        assert sum(each.phases.values()) == pytest.approx(each.update_seconds)
        off = half_width(ranks=each.ranks, anchor_ranks=None, communication_share=each.phases["communication"] / each.update_seconds, on_cpu=False)
        assert (each.low_s / each.update_seconds, each.high_s / each.update_seconds) == pytest.approx((1 - off, 1 + off)) and 0 < off < 1
        assert each.tokens_per_s == pytest.approx(each.tokens / each.update_seconds)
        assert each.device_hours == pytest.approx(each.total_s * each.ranks / 3600) and each.supervised_tokens_per_s == pytest.approx(each.tokens_per_s / 2)
    points = [set_against(each, of[8]) for each in of.values()]
    assert points[0].speedup == 8 and points[0].efficiency == 1
    assert 8 < points[1].speedup < 64 and points[1].efficiency > points[2].efficiency > 0
    assert points[0].device_hours < points[1].device_hours < points[2].device_hours
    assert points[0].mfu > points[2].mfu
    # 6M + A a token, the head at the supervised half: what is recomputed or padded is not in it.
    flops = 6 * (32 * (4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336) + 0.5 * 128256 * 4096) + 6 * 32 * 4096 * 1000
    assert all(each.mfu == pytest.approx(each.tokens_per_s * flops / (each.ranks * H100.bf16_flops)) for each in points)


def test_a_slow_network_limits():
    fast, slow = (point_of(setting(network=network), 64, 3) for network in ("8x400", "10Gb/s"))
    assert slow.update_seconds > 5 * fast.update_seconds and slow.limiting.startswith("collectives between hosts")
    # Inside a host the network between hosts is no matter.
    assert point_of(setting(network="10Gb/s"), 8, 3).update_seconds == point_of(setting(), 8, 3).update_seconds
    # Less is sent in stage 2 with its gradients coalesced than in stage 3.
    assert point_of(setting(network="10Gb/s"), 64, 2).phases["communication"] < slow.phases["communication"]


def test_weak_scaling_keeps_what_a_rank_does():
    weak = setting(mode="weak", base_ranks=8)
    few, many = (point_of(weak, ranks, 3) for ranks in (8, 64))
    assert (few.samples, many.samples) == (1024, 8192) and few.micro_steps == many.micro_steps
    assert set_against(many, few).efficiency > 0.9 > set_against(point_of(setting(), 512, 3), few).efficiency


def test_ranks_without_samples_wait():
    point = point_of(setting(samples=10), 64, 2)
    assert "54 of 64 ranks have none" in point_of(setting(samples=10, network="8x4000", gpu="a100-80"), 64, 2).limiting
    assert point.phases["idle"] > 4 * point.phases["compute"]


def test_unlike_lengths_wait():
    """Eight samples on eight ranks: the longest decides. Thousands even out."""
    spread = counted(histogram={200: 50_000, 4000: 5_000})
    few, many, alike = (point_of(setting(lengths=lengths, samples=samples), 8, 2) for lengths, samples in ((spread, 8), (spread, 4096), (counted(), 8)))
    assert few.phases["idle"] > 0.3 * few.update_seconds and many.phases["idle"] < 0.05 * many.update_seconds and alike.phases["idle"] == 0


@pytest.mark.parametrize(("stage", "waits"), [(2, 0.25), (3, 0.5)])
def test_ranks_wait_for_the_dearest_of_an_update_or_of_each_micro_step(stage, waits):
    dealt = Dealt(ranks=8, updates=5, micro_steps=16, samples=1024, tokens=1e6, imbalance=1.25, step_imbalance=1.5)
    phases = point_of(setting(dealt={8: dealt}), 8, stage).phases
    assert phases["idle"] == pytest.approx(waits * phases["compute"])


def test_a_made_up_deal_is_near_the_real_one():
    bins = {100: 4000, 300: 3000, 900: 800, 2500: 150}
    lengths = counted(histogram=bins)
    resolved = sized(setting(lengths=lengths, samples=128), 8)
    share = attention_share(llama(), 0.5)
    made = deal_by_lengths(resolved, llama(), lengths)
    drawn = np.random.default_rng(0).choice([bound * 0.92 for bound in bins], p=np.array(list(bins.values())) / sum(bins.values()), size=20 * 128)
    of = drawn.astype(np.int32)
    dealt = deal_many(of, np.arange(0, len(of) + 1, 128), world_size=8, micro_batch_tokens=8192, attention_share=AttentionShare(full=share))
    ranks = dealt.rank_sums(dealt.bin_sums(sample_costs(of, share)))
    assert made.imbalance == pytest.approx((ranks.max(axis=1) / ranks.mean(axis=1)).mean(), abs=0.03)
    assert made.micro_steps == pytest.approx(dealt.micro_steps.mean(), abs=0.3)
    # Ranks that wait after each micro-step wait for another one each time.
    larger = deal_by_lengths(sized(setting(lengths=lengths, samples=2048), 8), llama(), lengths)
    assert larger.micro_steps > 5 and larger.step_imbalance > larger.imbalance


def test_hosts_of_any_number_of_ranks():
    assert [host.slots for host in hosts_of(20, 8)] == [8, 8, 4] and [host.slots for host in hosts_of(3, 8)] == [3]
    assert len({host.name for host in hosts_of(4096, 8)}) == 512


def test_what_does_not_fit_is_said():
    point = point_of(setting(gpu="a100-40"), 2, 0)
    assert point.fit.fits is False and "over" in point.fit.lacks
    text = render_simulation(simulate_all(question(accelerator=find_accelerator("a100-40"), ranks=(2, 64), stages=(1, 3))))
    assert "does not fit" in text and "2 stage 1: a rank takes" in text


def test_a_whole_simulation():
    priced = run(stage=3, samples=1024, price_per_hour=2.5, currency="EUR")
    found = simulate_all(question(resolved=priced, stages=(3, 1)))
    assert [(point.stage, point.ranks) for point in found.points] == [(stage, ranks) for stage in (1, 3) for ranks in (8, 64, 512)]
    assert all(point.price == pytest.approx(2.5 * point.device_hours) for point in found.points)
    facts = json.loads(json.dumps(simulation_facts(found)))
    assert facts["schema"] == 1 and facts["points"][3]["fit"]["fits"] is True and facts["network"] == "8x400"
    text = render_simulation(found)
    assert "8x400 between hosts" in text and "price EUR" in text and "limited by:" in text and "nothing was run" in text and "512 stage 3" in text
    assert "not prepared yet" in text and "±33%" in text and max(map(len, text.splitlines())) <= 140


def test_the_real_hosts_say_how_many_share_one():
    assert simulate_all(question()).gpus_per_node == 8
    four = dataclasses.replace(run(stage=3, samples=64), hosts=(Host(name="far", slots=4), Host(name="away", slots=4)))
    assert simulate_all(question(resolved=four)).gpus_per_node == 4
    assert simulate_all(question(resolved=four, gpus_per_node=2)).points[0].nodes == 4


@pytest.mark.parametrize(("more", "where"), [({"ranks": (0, 8)}, "--simulate"), ({"ranks": ()}, "--simulate"), ({"gpus_per_node": 0}, "--gpus-per-node")])
def test_numbers_that_are_none(more, where):
    with pytest.raises(SpecError, match=where):
        simulate_all(question(**more))


def test_stages_that_the_spec_can_not_have_are_refused_at_once():
    offloaded = run(stage=2, samples=64)
    zero = dataclasses.replace(offloaded.spec.zero, offload_optimizer="cpu")
    offloaded = dataclasses.replace(offloaded, spec=dataclasses.replace(offloaded.spec, zero=zero))
    with pytest.raises(SpecError) as raised:
        simulate_all(question(resolved=offloaded, stages=(0, 2)))
    assert "--stages 0" in str(raised.value) and "--stages 2" not in str(raised.value)


def test_a_network_that_nobody_gave_is_assumed():
    found = simulate_all(question(network=""))
    assert found.network == "400 GB/s a host" and "inter_node_bandwidth is not given" in " ".join(found.notes)
    unknown = simulate_all(question(accelerator=find_accelerator("4090"), ranks=(1, 2)))
    assert "no published training speeds" in " ".join(unknown.notes)


def test_on_cpus_ranks_share_the_cores():
    small = llama(layers=2, hidden=512, intermediate=1024)
    found = simulate_all(question(accelerator=find_accelerator("cpu"), shape=small, resolved=run(stage=2, samples=64), ranks=(1, 2)))
    assert [point.nodes for point in found.points] == [1, 1] and "speed of the CPU" in " ".join(found.notes) and found.band.startswith("±50%")
    cores = len(os.sched_getaffinity(0))
    of_this_moment = setting(gpu="cpu", gpus_per_node=2)
    shares = [dataclasses.replace(of_this_moment, cores_per_rank=each) for each in (cores / 2, cores)]
    half, whole = (timed(dataclasses.replace(each, shape=small), 1, 2).update.compute_s for each in shares)
    assert half == pytest.approx(2 * whole) and timed(dataclasses.replace(shares[0], shape=small), 2, 2).update.compute_s == pytest.approx(whole, rel=0.01)


def test_one_point_for_other_verbs():
    point = simulate(run(stage=3, samples=1024), llama(), H100, 16)
    assert (point.ranks, point.nodes, point.speedup, point.efficiency) == (16, 2, 16, 1)


def test_the_band_grows_with_the_distance():
    near, far = (half_width(ranks=ranks, anchor_ranks=8, communication_share=0.0, on_cpu=False) for ranks in (16, 512))
    assert TIED < near < far < UNTIED
    assert half_width(ranks=8, anchor_ranks=8, communication_share=0.5, on_cpu=False, is_measured=True) == TIED
    assert half_width(ranks=8, anchor_ranks=8, communication_share=0.5, on_cpu=False) > TIED
    assert half_width(ranks=8, anchor_ranks=None, communication_share=0.5, on_cpu=False) > UNTIED
    assert half_width(ranks=2, anchor_ranks=1, communication_share=0.0, on_cpu=True) > TIED_CPU > TIED
