"""The ledger against what ranks really held: `python -m benchmarks.memory [--cases NAME,NAME] [--out FILE]`.

Each case trains two updates of two micro-steps with the core's own model building, engine and step: real DeepSpeed, on the CPU over gloo. Every rank
tracks its live tensor storages, each once (ftcore/exact_memory_tracker.py), from before the model is built to after the second update. The ledger
predicts the same case from its spec and the model's config.json. On the CPU device and host are one memory, so what is offloaded to the host counts too.
Where ranks have GPUs, activations and peaks are those of torch.cuda's allocator, and the ledger's host items are left out.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.memory_cases import CASES, Case, save_model
from launcher.memory.activation_row import Row
from launcher.memory.ledger import Ledger, build_ledger
from launcher.memory.shape import read_shape

MIB = 2**20
AIMS = {"activations": 0.02, "mean": 0.05, "worst": 0.08}
HOST_GROUPS = ("optimizer", "gradients", "weights", "buffers")
"""Host items that a rank holds as tensors while it trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One case, in bytes."""

    name: str
    activations: tuple[int, int]
    """Predicted, measured."""
    logits: tuple[int, int]
    peak: tuple[int, int]
    """Of the heaviest rank."""
    phase: str
    """The ledger's phase of the peak."""
    items: dict[str, tuple[int, int]]
    """Weights, gradients, optimizer, buffers: what the ledger says at its peak, and what was held between updates."""

    def error(self, field: str) -> float:
        """Relative, of activations or peak."""
        predicted, measured = getattr(self, field)
        return float(predicted / measured - 1)


def main() -> None:
    """Measures the cases one after the other; rank 0 of each brings back its numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="names of cases, with commas; all of them when not given")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    given = parser.parse_args()
    wanted = [case for case in CASES if not given.cases or case.name in given.cases.split(",")]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    compared = []
    with tempfile.TemporaryDirectory(prefix="ftlaunch-memory-") as folder:
        for case in wanted:
            if not (Path(folder) / case.model).exists():
                save_model(case.model, Path(folder))
            compared.append(compare(case, Path(folder), run_ranks(case, Path(folder))))
            print_case(compared[-1])
    print_summary(compared)
    if given.out:
        given.out.write_text(json.dumps([asdict(each) for each in compared], indent=1) + "\n")


def run_ranks(case: Case, folder: Path) -> list[dict[str, Any]]:
    """What each rank measured. Ends the benchmark when a rank fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_rank, args=(rank, case, port, folder)) for rank in range(case.ranks)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        raise SystemExit(f"{case.name}: the ranks ended with {[process.exitcode for process in ranks]}; there is no result")
    return [json.loads((folder / f"measured_{rank}.json").read_text()) for rank in range(case.ranks)]


def _rank(rank: int, case: Case, port: int, folder: Path) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(case.ranks), LOCAL_WORLD_SIZE=str(case.ranks))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    log = os.open(folder / f"{case.name}_{rank}.log", os.O_WRONLY | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    from benchmarks.memory_ranks import measure_cases

    [measured] = measure_cases(rank, case.ranks, str(folder), [case])
    (folder / f"measured_{rank}.json").write_text(json.dumps({**asdict(measured), "peak": measured.peak}))
    os._exit(0)


def ledger_of(case: Case, folder: Path, *, on_cpu: bool = True) -> Ledger:
    """What the ledger says of the case."""
    config = json.loads((folder / case.model / "config.json").read_text())
    supervised = sum(int(length * case.supervised) for length in case.segments)
    return build_ledger(case.resolved(folder), read_shape(config), Row(segments=case.segments, supervised=supervised, on_cpu=on_cpu), on_cpu=on_cpu)


def compare(case: Case, folder: Path, measured: list[dict[str, Any]]) -> Compared:
    """The ledger's numbers beside those of the heaviest rank."""
    heaviest = max(measured, key=lambda each: int(each["peak"]))
    ledger = ledger_of(case, folder, on_cpu=not heaviest["allocator"])
    in_backward = [item for item in ledger.items if item.place == "device" and "backward" in (item.phases or ("backward",))]
    away = [item for item in ledger.items if item.place == "host" and item.scope == "rank" and item.group in HOST_GROUPS] if not heaviest["allocator"] else []
    held = [item for item in in_backward if item.group == "activations" and not item.name.startswith("backward pass")]
    states = heaviest["states"]
    return Compared(
        name=case.name,
        activations=(sum(item.bytes for item in held), heaviest["activations"]),
        logits=(sum(item.bytes for item in in_backward if item.group == "logits"), heaviest["logits"]),
        peak=(ledger.device_peak_bytes + sum(item.bytes for item in away), heaviest["peak"]),
        phase=ledger.peak_phase,
        items={
            "weights": (_group(ledger, away, "weights"), states["weights"]),
            "optimizer": (_group(ledger, away, "optimizer"), states["master"] + states["moments"]),
            "gradients": (_group(ledger, away, "gradients"), states["gradients"]),
            "buffers": (_group(ledger, away, "buffers"), states["buffers"]),
        },
    )


def _group(ledger: Ledger, away: list[Any], group: str) -> int:
    return ledger.group_bytes(group) + sum(item.bytes for item in away if item.group == group)


def print_case(found: Compared) -> None:
    """One line a case, and one of its items."""
    shown = "  ".join(f"{name} {one / MIB:.1f}/{other / MIB:.1f}" for name, (one, other) in {**found.items, "logits": found.logits}.items())
    for field in ("activations", "peak"):
        one, other = getattr(found, field)
        print(f"{found.name if field == 'activations' else '':<24}{field:<12}{one / MIB:>9.1f}{other / MIB:>9.1f} MiB {found.error(field):>+8.1%}", flush=True)
    print(f"{'':<24}{shown} ({found.phase})", flush=True)


def print_summary(compared: list[Compared]) -> None:
    """Whether the aims are met."""
    activations = [abs(each.error("activations")) for each in compared]
    peaks = [abs(each.error("peak")) for each in compared]
    print(f"\n{len(compared)} cases. Predicted/measured; states beside the ledger's are those held between updates")
    print(f"activations: worst {max(activations):.2%} (aim {AIMS['activations']:.0%})")
    print(f"peak: mean {mean(peaks):.2%} (aim {AIMS['mean']:.0%}), worst {max(peaks):.2%} (aim {AIMS['worst']:.0%})")


if __name__ == "__main__":
    main()
