from __future__ import annotations

import dataclasses
import math
import statistics

import pytest

from benchmarks.published import llama_8b, on_one_host
from benchmarks.time_model import errors
from launcher.memory.accelerators import find_accelerator
from launcher.memory.cost import RunData, forecast_of, updates_of
from launcher.memory.cost_text import device_hours, forecast_facts, render_forecast, rough_time
from launcher.memory.lengths import DataLengths
from launcher.memory.network import bus_share, message_seconds, network_of
from launcher.memory.traffic import Message, traffic_of
from launcher.memory.work import cut_update, matmul_parameters, recomputed_share, work_of
from tests.unit.planned_runs import llama, run

H100 = find_accelerator("h100-80")


def lengths(samples: int = 1280, length: int = 1000, supervised: float = 0.5) -> DataLengths:
    tokens = samples * length
    return DataLengths(
        samples=samples,
        tokens=tokens,
        supervised_tokens=supervised * tokens,
        squares=tokens * length,
        longest=length,
        histogram={length: samples},
        origin="given",
        is_assumed=False,
    )


def test_published_speeds_of_one_host_are_met():
    found = [abs(error) for error in errors(on_one_host())]
    assert len(found) == 142 and statistics.mean(found) < 0.045 and max(found) < 0.35


def test_flops_of_an_update_by_hand():
    shape = llama()
    layers = 32 * (4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336)
    assert matmul_parameters(shape) == matmul_parameters(llama_8b()) == layers
    tokens, attention, head = 128 * 1000 / 8, 6 * 32 * 4096 * 1000, 0.5 * 128256 * 4096
    full = work_of(run(), shape, lengths(), shape.parameters)
    assert full.matmul_flops == pytest.approx(tokens * 6 * (layers + head))
    assert full.attention_flops == pytest.approx(tokens * attention)
    adapters = 20_000_000
    lora = work_of(run(method="lora"), shape, lengths(), adapters)
    assert lora.matmul_flops == pytest.approx(tokens * (4 * (layers + head) + 6 * adapters))
    again = dataclasses.replace(run().spec.train, gradient_checkpointing="full")
    recomputed = run()
    recomputed = dataclasses.replace(recomputed, spec=dataclasses.replace(recomputed.spec, train=again))
    twice = work_of(recomputed, shape, lengths(), shape.parameters)
    assert twice.matmul_flops - full.matmul_flops == pytest.approx(tokens * 2 * layers)
    assert twice.model_flops == full.model_flops


@pytest.mark.parametrize(("rule", "share"), [("none", 0), ("full", 1), ("every:2", 0.5), ("every:5", 7 / 32), ("sqrt", 26 / 32)])
def test_share_that_is_recomputed(rule, share):
    assert recomputed_share(rule, 32) == pytest.approx(share)


@pytest.mark.parametrize(
    ("stage", "coalesces", "micro_steps", "expected"),
    [
        # b = 2 bytes; T = P: 4T, 2T + 2T, GA·2T + 2T, 2T + 2T, GA·(4P + 2T), GA·4P + 2T.
        (0, False, 4, 4),
        (1, False, 4, 4),
        (2, False, 4, 10),
        (2, True, 4, 4),
        (3, False, 4, 24),
        (3, True, 4, 18),
    ],
)
def test_bytes_between_ranks(stage, coalesces, micro_steps, expected):
    shape, resolved = llama(), run(stage=stage)
    zero = dataclasses.replace(resolved.spec.zero, coalesce_grad_reduction=coalesces)
    resolved = dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, zero=zero))
    traffic = traffic_of(resolved, shape, shape.parameters, micro_steps)
    assert traffic.collective_bytes == pytest.approx(expected * shape.parameters)
    assert traffic_of(dataclasses.replace(resolved, hosts=run(ranks=1).hosts), shape, shape.parameters, micro_steps).messages == ()


def test_the_bus_as_it_was_measured():
    measured = {1: 40, 4: 107, 32: 276, 64: 347, 256: 436, 1024: 464}
    for mib, gb in measured.items():
        assert bus_share(mib * 2**20) * 450 == pytest.approx(gb, rel=0.01)
    assert bus_share(2**20) < bus_share(2 * 2**20) < bus_share(2**22)
    assert bus_share(2**40) == bus_share(2**30)


def test_a_ring_is_as_slow_as_its_slower_stage():
    gather = Message(kind="gather", bytes=400e6, times=10)
    inside, between = (network_of(run(nodes=nodes, inter_node_bandwidth=400.0), H100) for nodes in (1, 64))
    # 8 ranks: 350 MB over links that reach 363 of 450 GB/s.
    assert message_seconds(gather, inside) == pytest.approx(10 * 350e6 / (0.81 * 450e9), rel=0.02)
    # 512 ranks: 393.75 MB over the cards of each host, and 441 hops inside hosts (8 are in the measured bus) and 63 between them.
    simple = 393.75e6 / (0.85 * 400e9) + 441 * 3.4e-6 + 63 * 9.6e-6
    fast = 399.2e6 / (0.81 * 450e9) / 0.92 + 441 * 1.9e-6 + 63 * 4e-6
    assert message_seconds(gather, between) == pytest.approx(10 * min(simple, max(fast, 393.75e6 / (0.85 * 400e9) / 0.92 + 441 * 1.9e-6 + 63 * 4e-6)), rel=0.01)
    slow = network_of(run(nodes=64, inter_node_bandwidth=12.5), H100)
    assert message_seconds(gather, slow) / message_seconds(gather, between) > 15
    # hpZ stays inside a host.
    at_home = dataclasses.replace(gather, in_node=True)
    assert message_seconds(at_home, slow) == pytest.approx(message_seconds(gather, inside))
    assert message_seconds(gather, dataclasses.replace(inside, ranks=1)) == 0


def test_an_all_reduce_may_take_a_tree():
    # Small messages on many hosts: a tree has log2 of them as hops.
    network = network_of(run(nodes=64, inter_node_bandwidth=400.0), H100)
    one, other = (message_seconds(Message(kind=kind, bytes=2**20, times=1), network) for kind in ("all-reduce", "reduce"))
    assert one < other / 3 and one > math.log2(64) * 8.5e-6


def test_the_networks_of_hosts():
    inside = network_of(run(), H100)
    assert (inside.ranks, inside.nodes, inside.notes) == (8, 1, ())
    between = network_of(run(nodes=2), H100)
    assert between.node_bandwidth == 400e9 and "inter_node_bandwidth is not given" in between.notes[0]
    said = network_of(run(nodes=2, inter_node_bandwidth=12.5, intra_node_bandwidth=200.0), H100)
    assert (said.node_bandwidth, said.link_bandwidth, said.notes) == (12.5e9, 200e9, ())
    assert network_of(run(nodes=2), find_accelerator("4090")).node_bandwidth == 3.125e9


def test_micro_steps_of_an_update():
    # 128 samples of 1000 tokens on 8 ranks: 16,000 a rank.
    assert cut_update(run(budget=4096).spec, 8, lengths()).micro_steps == 4
    assert cut_update(run(budget=16384).spec, 8, lengths()).micro_steps == 1
    # Two of them don't fit into 1,536: one each, although the tokens would need 11.
    assert cut_update(run(budget=1536).spec, 8, lengths()).micro_steps == 16
    few = cut_update(run(samples=128).spec, 8, lengths(samples=16))
    assert few.samples == 16


def test_time_and_price_of_a_run():
    shape, data = llama(), RunData(train=lengths(), evaluated_tokens=100_000)
    found = forecast_of(run(price_per_hour=2.0, currency="EUR"), shape, shape.parameters, H100, data)
    assert found.updates == 100 and found.total_s == pytest.approx(100 * found.update.total_s + found.evaluation_s)
    assert found.price == pytest.approx(2 * found.device_hours) and found.device_hours == pytest.approx(8 * found.total_s / 3600)
    assert found.price_per_million == pytest.approx(found.price / (100 * 64_000) * 1e6)
    text = render_forecast(found)
    assert "EUR a million supervised tokens" in text and "micro-steps on each of 8 ranks" in text
    assert forecast_facts(found)["tokens_per_s"] == pytest.approx(128_000 / found.update.total_s)
    free = forecast_of(run(), shape, shape.parameters, H100, data)
    assert free.price is None and "price" not in render_forecast(free)


def test_offload_costs_time():
    shape, data = llama(), RunData(train=lengths(), evaluated_tokens=0)
    resolved = run()
    zero = dataclasses.replace(resolved.spec.zero, offload_optimizer="cpu", coalesce_grad_reduction=False)
    offloaded = dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, zero=zero))
    kept, moved = (forecast_of(each, shape, shape.parameters, H100, data) for each in (resolved, offloaded))
    assert moved.update.offload_s > 1 > kept.update.offload_s == 0
    assert "between accelerator and host" in render_forecast(moved)


def test_what_was_assumed_is_said():
    shape = llama()
    guessed = dataclasses.replace(lengths(), is_assumed=True, origin="a guess")
    found = forecast_of(run(nodes=2), shape, shape.parameters, find_accelerator("4090"), RunData(train=guessed, evaluated_tokens=0))
    said = " ".join(found.notes)
    assert "a guess" in said and "no published training speeds" in said and "inter_node_bandwidth" in said
    old = forecast_of(run(), shape, shape.parameters, find_accelerator("t4"), RunData(train=lengths(), evaluated_tokens=0))
    assert "no tensor cores for bfloat16" in " ".join(old.notes) and "8 times as fast" in " ".join(old.notes) and "bfloat16" not in said
    on_cpu = forecast_of(run(), shape, shape.parameters, find_accelerator("cpu"), RunData(train=lengths(), evaluated_tokens=0))
    assert "ftlaunch pilot" in " ".join(on_cpu.notes)


def test_updates_of_epochs():
    resolved = run()
    train = dataclasses.replace(resolved.spec.train, max_steps=None, num_train_epochs=1.5)
    by_samples = dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, train=train))
    assert updates_of(by_samples, lengths(samples=1281)) == 11 + 6
    batch = dataclasses.replace(resolved.spec.batch, global_batch_size=None, tokens_per_update=64_000)
    by_tokens = dataclasses.replace(resolved, spec=dataclasses.replace(by_samples.spec, batch=batch))
    assert updates_of(by_tokens, lengths()) == 20 + 10


WORDS = [(0.5, "0.5 s"), (45, "45 s"), (600, "10 min"), (12000, "3 h 20 min"), (190800, "2 d 5 h"), (7200, "2 h")]


@pytest.mark.parametrize(("seconds", "text"), WORDS)
def test_times_in_words(seconds, text):
    assert rough_time(seconds) == text


@pytest.mark.parametrize(("hours", "text"), [(0.01364, "0.0136"), (1.355, "1.35"), (99.4, "99.4"), (1234.5, "1,234")])
def test_device_hours_in_full(hours, text):
    assert device_hours(hours) == text
