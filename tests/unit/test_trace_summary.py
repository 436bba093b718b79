"""Where the time of profiled updates went: sums that add up, on events of a GPU and of a CPU made by hand, and what is said of them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ftcore import trace_summary
from ftcore.spec.errors import CheckpointError
from ftcore.trace_summary.__main__ import summarise_folder
from ftcore.trace_summary.advice import Facts, advice
from ftcore.trace_summary.events import MOST_OF_A_HEAD
from ftcore.trace_summary.parts import PARTS
from ftcore.trace_summary.run_facts import RunFacts, read_run_facts
from ftcore.trace_summary.summary import read_ranks, summarise, traces_in
from tests.unit.made_traces import Event, event, kernel, launch, operator, phase, update, write_trace
from tests.unit.planned_runs import run as planned_run

SCHEMA = Path(trace_summary.__file__).with_name("summary.schema.json")
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def summary_of(folder: Path) -> dict[str, Any]:
    """summary.json of a folder's traces, which is as its schema says."""
    summarise_folder(folder, None)
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    jsonschema.validate(found, json.loads(SCHEMA.read_text()))
    return found


def gpu_update(at: float = 0.0, *, wait: float = 0.0) -> list[Event]:
    """1000 µs of one rank: 500 of computing, 150 of communication and 40 of copies with nothing beside, 100 of data, 200 host-bound, 10 of gaps.

    `wait`: the collective begins so much earlier, while nothing else runs: it waits for another rank.
    """
    made = [
        update(1, 0, 1000),
        phase("data_wait", 0, 100),
        phase("forward", 100, 300),
        phase("backward", 300, 500),
        phase("optimizer", 500, 600),
        operator("aten::linear", 105, 215, External_id=11),
        operator("aten::addmm", 108, 125, External_id=12, Input_Dims=[[64], [8, 32], [32, 64], []]),
        launch(1, 110, 120),
        kernel("sm90_gemm", 130, 330, 1, 12),
        launch(2, 200, 210, "cuLaunchKernelEx"),
        kernel("flash_fwd", 330, 400, 2, 11),
        launch(3, 310, 320),
        kernel(NCCL, 350 - wait, 600, 3, stream=20),
        launch(4, 420, 430),
        kernel("sm90_gemm", 500, 550, 4),
        launch(5, 600, 610, "cudaMemcpyAsync"),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 610, 650, 7, correlation=5),
        event("cuda_runtime", "cudaStreamSynchronize", 611, 655, correlation=6),
        launch(7, 700, 720),
        kernel("multi_tensor_adam", 720, 900, 7),
    ]
    return [{**each, "ts": each["ts"] + at} for each in made]


def microseconds(parts: dict[str, float]) -> dict[str, int]:
    return {name: round(seconds * 1e6) for name, seconds in parts.items()}


def test_a_gpus_time_is_told_apart(tmp_path: Path) -> None:
    write_trace(tmp_path / "rank_0.json.gz", gpu_update())
    found = summary_of(tmp_path)
    assert found["schema"] == 1 and found["device"] == "accelerator" and found["updates"] == [1]
    assert microseconds(found["parts"]) == {"compute": 500, "communication": 150, "copy": 40, "data": 100, "host_bound": 200, "gap": 10}
    assert sum(found["parts"].values()) == pytest.approx(found["wall_s"]) == pytest.approx(1e-3)
    assert found["host_bound_share"] == pytest.approx(0.2)
    told = found["communication"]
    assert [round(told[key] * 1e6) for key in ("total_s", "overlapped_s", "exposed_s")] == [250, 100, 150] and told["overlap_share"] == pytest.approx(0.4)
    # One rank has nobody to be set beside.
    assert told["waiting_s"] is None and found["imbalance"] is None
    assert found["ranks"][0]["synchronisations"] == {"calls": 1, "seconds": pytest.approx(44e-6)}


def test_what_a_gpu_does_belongs_to_the_phase_that_launched_it(tmp_path: Path) -> None:
    write_trace(tmp_path / "rank_0.json.gz", gpu_update())
    phases = {name: microseconds(parts) for name, parts in summary_of(tmp_path)["phases"].items()}
    assert phases["data_wait"] == {"wall_s": 100, "compute": 0, "communication": 0, "copy": 0, "data": 100, "host_bound": 0, "gap": 0}
    assert (phases["forward"]["compute"], phases["forward"]["host_bound"], phases["forward"]["gap"]) == (270, 20, 10)
    assert (phases["backward"]["compute"], phases["backward"]["communication"]) == (50, 150)
    # The host has gone on to what follows when it launches these.
    assert (phases["other"]["compute"], phases["other"]["copy"], phases["other"]["host_bound"]) == (180, 40, 180)
    assert sum(each["wall_s"] for each in phases.values()) == 1000


def test_kernels_count_for_the_operator_that_launched_them(tmp_path: Path) -> None:
    write_trace(tmp_path / "rank_0.json.gz", gpu_update())
    found = summary_of(tmp_path)
    inner = next(each for each in found["operators"] if each["name"] == "aten::addmm")
    assert inner["device_s"] == pytest.approx(200e-6) and inner["self_s"] == pytest.approx(17e-6) and inner["calls"] == 1
    assert inner["shapes"] == [{"shapes": "[64]×[8,32]×[32,64]", "seconds": pytest.approx(200e-6)}]
    outer = next(each for each in found["operators"] if each["name"] == "aten::linear")
    assert outer["device_s"] == pytest.approx(70e-6) and outer["self_s"] == pytest.approx(93e-6)
    assert {each["name"]: each["calls"] for each in found["kernels"][:2]} == {"sm90_gemm": 2, NCCL: 1}


def test_a_launch_in_time_is_no_launch_that_is_waited_for(tmp_path: Path) -> None:
    made = [update(1, 0, 300), launch(1, 0, 10), kernel("a", 20, 100, 1), launch(2, 15, 25), kernel("b", 150, 300, 2), kernel("c", 300, 300, 9)]
    write_trace(tmp_path / "rank_0.json", made, packed=False)
    # Before `a` 10 µs of launching and 10 of starting; `b` was launched long before it began: it waited for something else.
    assert microseconds(summary_of(tmp_path)["parts"]) == {"compute": 230, "communication": 0, "copy": 0, "data": 0, "host_bound": 10, "gap": 60}


def test_waiting_for_the_last_rank_is_told_from_sending(tmp_path: Path) -> None:
    write_trace(tmp_path / "rank_0.json.gz", gpu_update(), rank=0)
    write_trace(tmp_path / "rank_1.json.gz", gpu_update(at=5000.0, wait=60.0), rank=1)
    found = summary_of(tmp_path)
    ranks = {each["rank"]: each["communication"] for each in found["ranks"]}
    assert [round(ranks[rank]["waiting_s"] * 1e6) for rank in (0, 1)] == [0, 60]
    assert all(ranks[rank]["transfer_s"] == pytest.approx(250e-6) for rank in (0, 1))
    assert found["imbalance"]["slowest_rank"] is None


def cpu_update(*, compute: float = 300.0) -> list[Event]:
    """1000 µs: the operators of a forward, an exchange in a hook of the backward, and Python in between."""
    return [
        update(4, 0, 1000),
        phase("data_wait", 0, 50),
        phase("forward", 50, 450),
        operator("aten::mm", 60, 60 + compute, Input_Dims=[[4, 8], [8, 2]]),
        operator("aten::resolve_conj", 70, 80),
        phase("backward", 450, 800),
        operator("autograd::engine::evaluate_function: MmBackward0", 460, 780),
        operator("MmBackward0", 460, 560),
        operator("aten::mm", 470, 550),
        # The hook in which DeepSpeed reduces: the thread waits for gloo's, which has the time from 620 to 700.
        operator("c10d::allreduce_", 600, 705),
        event("user_annotation", "gloo:all_reduce", 620, 700, 9),
        operator("aten::copy_", 630, 690, 9),
        phase("optimizer", 800, 900),
        event("user_annotation", "Optimizer.step#AdamW.step", 800, 900),
        operator("aten::_foreach_add_", 810, 890),
        # The thread that reads ahead: its operators and its exchange hold nobody up.
        operator("aten::stack", 0, 1000, 5),
        event("user_annotation", "gloo:all_gather", 900, 990, 12),
    ]


def test_a_cpus_time_is_told_apart(tmp_path: Path) -> None:
    write_trace(tmp_path / "rank_0.json.gz", cpu_update())
    found = summary_of(tmp_path)
    assert found["device"] == "cpu" and found["updates"] == [4]
    # Computing: 300 + 80 + 80; waiting inside of autograd's wrapper is none. Python: 400 - 300, 350 - 80 - 80, 100 - 80.
    assert microseconds(found["parts"]) == {"compute": 460, "communication": 80, "copy": 0, "data": 50, "host_bound": 310, "gap": 100}
    assert sum(found["parts"].values()) == pytest.approx(found["wall_s"])
    assert "no device waits" in found["host_bound_means"]
    assert [(each["name"], each["calls"]) for each in found["collectives"]] == [("allreduce", 1)]
    top = {each["name"]: each for each in found["operators"]}
    assert top["aten::mm"]["calls"] == 2 and top["aten::mm"]["self_s"] == pytest.approx(370e-6)


def test_communication_behind_computing_is_hidden(tmp_path: Path) -> None:
    made = [
        update(1, 0, 100),
        phase("backward", 0, 100),
        operator("c10d::_allgather_base_", 0, 5),
        event("user_annotation", "gloo:all_gather", 10, 60, 9),
        operator("aten::mm", 20, 50),
    ]
    write_trace(tmp_path / "rank_0.json.gz", made)
    found = summary_of(tmp_path)
    assert microseconds(found["parts"])["communication"] == 20 and found["communication"]["overlap_share"] == pytest.approx(0.6)


def test_the_rank_that_computes_longest_is_named_with_its_cause(tmp_path: Path) -> None:
    write_trace(tmp_path / "rank_0.json.gz", cpu_update(compute=200.0), rank=0)
    write_trace(tmp_path / "rank_1.json.gz", cpu_update(compute=380.0), rank=1)
    uneven = summary_of(tmp_path)["imbalance"]
    assert uneven["slowest_rank"] == 1 and uneven["compute_max_over_mean"] == pytest.approx(540 / 450) and uneven["cause"] == ""


def test_ranks_that_are_slow_in_turns_are_not_named(tmp_path: Path) -> None:
    for rank in (0, 1):
        spans = (300.0, 100.0) if rank == 0 else (100.0, 260.0)
        made = [update(1, 0, 400), operator("aten::mm", 0, spans[0]), update(2, 400, 800), operator("aten::mm", 400, 400 + spans[1])]
        write_trace(tmp_path / f"rank_{rank}.json.gz", made, rank=rank)
    uneven = summary_of(tmp_path)["imbalance"]
    assert uneven["compute_max_over_mean"] == pytest.approx(400 / 380) and uneven["slowest_rank"] is None


def test_a_trace_without_named_updates_is_summed_up_as_a_whole(tmp_path: Path) -> None:
    write_trace(tmp_path / "host_77.pt.trace.json", [operator("aten::mm", 100, 300), operator("aten::add", 350, 400)], rank=3, packed=False)
    found = summary_of(tmp_path)
    assert found["updates"] == [] and found["update_s"] is None and found["ranks"][0]["rank"] == 3
    assert microseconds(found["parts"]) == {"compute": 250, "communication": 0, "copy": 0, "data": 0, "host_bound": 50, "gap": 0}
    assert list(found["phases"]) == ["other"]


def test_traces_of_a_run_that_went_on_add_up(tmp_path: Path) -> None:
    write_trace(tmp_path / "rank_0.json.gz", gpu_update())
    later = [{**each, "name": each["name"].replace("update 1", "update 2")} for each in gpu_update(at=9e6)]
    write_trace(tmp_path / "rank_0_from_2.json.gz", later)
    found = summary_of(tmp_path)
    assert found["updates"] == [1, 2] and found["wall_s"] == pytest.approx(2e-3) and found["update_s"] == pytest.approx(1e-3)
    assert found["ranks"][0]["traces"] == ["rank_0.json.gz", "rank_0_from_2.json.gz"]


def test_advice_begins_with_the_largest_part(tmp_path: Path) -> None:
    write_trace(tmp_path / "rank_0.json.gz", gpu_update())
    told = summary_of(tmp_path)["advice"]
    assert [each["part"] for each in told] == ["compute", "host_bound", "communication", "data"]
    assert all(each["meaning"] and each["knobs"] for each in told)
    assert "waited for the device 1 times an update" in told[1]["meaning"]
    assert [part for part in PARTS if part not in [each["part"] for each in told]] == ["copy", "gap"]


@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize("streaming", [True, False])
def test_advice_reads_the_spec_of_the_run(on_device: bool, streaming: bool) -> None:
    spec = planned_run().spec
    spec = dataclasses.replace(spec, data=dataclasses.replace(spec.data, streaming=streaming))
    shares = {part: 1 / len(PARTS) for part in PARTS}
    told = advice(Facts(shares=shares, spec=spec, ranks=8, waiting_share=0.6, overlap_share=0.1, cause="", on_device=on_device, synchronisations_an_update=1))
    knobs = {each["part"]: each["knobs"] for each in told}
    assert all(knobs[part] for part in PARTS)
    assert any(knob.startswith("data.streaming: false") for knob in knobs["data"]) == streaming


def test_the_page_holds_the_numbers(tmp_path: Path) -> None:
    write_trace(tmp_path / "rank_0.json.gz", gpu_update())
    write_trace(tmp_path / "rank_1.json.gz", gpu_update(), rank=1)
    summary_of(tmp_path)
    page = (tmp_path / "summary.html").read_text().replace("\u00a0", " ")
    assert "50.0 %" in page and "20.0 %" in page and "host-bound" in page and "sm90_gemm" in page and "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "<script" not in page


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing was profiled") as caught:
        summarise_folder(tmp_path, None)
    assert "ftlaunch profile" in caught.value.problems[0].fix
    (tmp_path / "resolved.json").write_text("{}")
    with pytest.raises(CheckpointError, match="recorded no profile"):
        summarise_folder(tmp_path, None)
    with pytest.raises(CheckpointError, match="there is no folder"):
        summarise_folder(tmp_path / "gone", None)


def test_a_summary_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    write_trace(tmp_path / "rank_0.json.gz", gpu_update())
    (tmp_path / "out" / "summary.json").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="can't be written: Is a directory"):
        summarise_folder(tmp_path, tmp_path / "out")


def test_an_event_that_is_not_as_torch_writes_it_leaves_nothing(tmp_path: Path) -> None:
    odd = [{**operator("aten::mm", 10, 20), "dur": None}, operator("aten::mm", 10, 20, External_id=2**70), {**operator("aten::mm", 10, 20), "ts": "soon"}]
    write_trace(tmp_path / "rank_0.json", [*odd, operator("aten::add", 100, 150)], packed=False)
    found = summary_of(tmp_path)
    assert [each["name"] for each in found["operators"]] == ["aten::add"] and found["wall_s"] == pytest.approx(50e-6)


def test_large_json_of_others_is_not_read_for_a_head(tmp_path: Path) -> None:
    write_trace(tmp_path / "rank_0.json.gz", gpu_update())
    rows = json.dumps({"text": "x" * 1000}) + ","
    (tmp_path / "rows.json").write_text("[" + rows * (2 * MOST_OF_A_HEAD // len(rows)) + '{"traceEvents": []}]')
    assert summary_of(tmp_path)["problems"] == ['rows.json is no Chrome trace: it has no "traceEvents"']


def test_the_largest_memory_of_several_traces_counts(tmp_path: Path) -> None:
    for number, peak in enumerate((900, 300), start=1):
        told = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "args": {"Total Allocated": peak, "Device Type": 0}}
        write_trace(tmp_path / f"rank_0_from_{number}.json.gz", [operator("aten::mm", 0, 10), told])
    assert summary_of(tmp_path)["ranks"][0]["memory"] == {"cpu": {"first_bytes": 900, "peak_bytes": 900}}


def test_waiting_is_not_told_where_a_rank_was_not_profiled(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_trace(tmp_path / f"rank_{rank}.json.gz", gpu_update(wait=10.0 * rank), rank=rank)
    ranks, problems = read_ranks(traces_in(tmp_path), lambda done, total: None)
    of_two, of_four = (summarise(ranks, problems, RunFacts(resolved=planned_run(ranks=count))) for count in (2, 4))
    assert of_two["communication"]["waiting_s"] == pytest.approx(5e-6)
    assert of_four["communication"]["waiting_s"] is None and of_four["ranks"][0]["communication"]["transfer_s"] is None


def test_odd_lines_of_a_run_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "resolved.json").write_text(planned_run(ranks=1).to_json())
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"update": 9, "seconds": NaN}\n{"update": [1], "seconds": 2.0}\n{"update": 8, "seconds": 0.5}\n')
    (tmp_path / "metrics/rank_0.jsonl").write_text('{"update": [1], "tokens": 3}\n{"update": 1, "tokens": 5}\n')
    facts = read_run_facts(tmp_path)
    assert facts.tokens([1]) == {0: 5} and facts.unprofiled_update_s([1]) == 0.5
