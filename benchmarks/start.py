"""How long a launch takes to get going: `python -m benchmarks.start [--rounds N] [--out FILE]`; needs what `make bench` installs, part 1 root and sshd too.

1. Two hosts in namespaces of this machine: from the command to the first process on the first host, `ftlaunch --hosts` and plain `ssh HOST`, in
   turns; the difference is the launcher's own time. Also to the supervisor of the host's ranks, with preflight and preparation (cached rows) between.
2. Two ranks here: from the command to the first finished update, `ftlaunch` and TRL's SFTTrainer under `deepspeed`, in turns. The same model folder, rows,
   optimizer and ZeRO stage; the loss of the update must agree, or there is no result. CPU seconds are those of all processes up to that moment.
   Token caches are cold in every round, files and compiled kernels warm.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from ftcore.data.prepared import load_prepared
from ftcore.spec.run_dir import RunDir
from tests.cluster.hosts import Cluster, what_is_missing

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
LIMIT_S = 300.0
RANKS = 2
SAMPLES = 16
LOSS_TOLERANCE = 1e-5
"""Relative; both sum the same token losses in fp32."""
OURS, PEER = "ftlaunch", "deepspeed + TRL"
AIM_OVER_SSH_S, AIM_RATIO = 0.5, 0.4

SPEC = """\
model: {{model_name_or_path: {model}}}
data:
  train: {{path: {rows}, format: prompt_completion}}
batch: {{global_batch_size: {samples}, micro_batch_tokens: 8192}}
optimizer: {{type: adamw, learning_rate: 1e-3}}
schedule: {{lr_scheduler_type: constant}}
train: {{max_steps: 5, precision: fp32}}
zero: {{stage: 2}}
cluster: {{slots: {ranks}}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What it took until the first update was finished."""

    wall_s: float
    cpu_s: float
    """Of all processes, user and system."""
    loss: float


def main() -> None:
    """Measures both parts and prints their numbers."""
    given = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="ftlaunch-start-"))
    try:
        result = {"hosts": measure_hosts(folder, given.rounds), "update": measure_update(folder, given.rounds)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")


def measure_hosts(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds to the first process on a host, by what was started; empty where no hosts can be started."""
    missing = what_is_missing()
    if missing:
        print(f"part 1 was left out: {missing}")
        return {}
    cluster = Cluster.up(folder / "hosts")
    try:
        hostfile = cluster.write_hostfile(folder / "hostfile", 1)
        environment = environment_with(folder / "cache", **cluster.environment)
        ours = [str(BIN / "ftlaunch"), "--hosts", str(hostfile), "--no-export", "train.max_steps=1", "-o"]
        subprocess.run([*ours, str(folder / "warm_up")], check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
        times: dict[str, list[float]] = {"ssh": [], "first process": [], "supervisor": []}
        for number in range(rounds):
            times["ssh"] += seconds_until(cluster, ["ssh", "-F", str(cluster.ssh_config), "node1", "exec sleep 10"], environment, [on_host])
            first, supervisor = seconds_until(cluster, [*ours, str(folder / f"run_{number}")], environment, [on_host, is_supervisor])
            times["first process"].append(first)
            times["supervisor"].append(supervisor)
    finally:
        cluster.down()
    over = [ours - ssh for ours, ssh in zip(times["first process"], times["ssh"], strict=True)]
    print(f"{'to the first process on a host':<34}{'median s':>10}")
    for name, values in times.items():
        print(f"  {name:<32}{median(values):>10.2f}")
    print(f"  launcher's own, over ssh's      {median(over):>10.2f}   aim: {AIM_OVER_SSH_S} at most")
    return {**times, "over_ssh": over}


def seconds_until(cluster: Cluster, command: list[str], environment: dict[str, str], conditions: list[Callable[[str], bool]]) -> list[float]:
    """Seconds from the command to the first process on node1 that meets each condition, which is asked about command lines; ends everything then."""
    began = time.perf_counter()
    log = cluster.folder / "output.txt"
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=cluster.folder, env=environment, stdout=file, stderr=file)
    seen: list[float] = []
    try:
        while len(seen) < len(conditions):
            if process.poll() is not None or time.perf_counter() - began > LIMIT_S:
                raise SystemExit(f"{' '.join(command)}: not seen on node1; its output ends with\n{log.read_text(errors='replace')[-3000:]}")
            if any(map(conditions[len(seen)], cluster.processes("node1").values())):
                seen.append(time.perf_counter() - began)
    finally:
        kill_tree(process)
        cluster.restore()
    return seen


def on_host(command: str) -> bool:
    """Whether a process is more than sshd's own."""
    return not command.startswith(("sshd", "/usr/sbin/sshd"))


def is_supervisor(command: str) -> bool:
    """Whether this is what starts a host's ranks."""
    return "-m launcher.node" in command


def measure_update(folder: Path, rounds: int) -> dict[str, list[dict[str, float]]]:
    """What each system took to its first update, by round."""
    make_inputs(folder)
    start_peer(folder)  # compiles a kernel of DeepSpeed the first time, and reads files into memory
    start_ours(folder)
    rows: dict[str, list[Started]] = {OURS: [], PEER: []}
    for number in range(rounds):
        for name, start in ((OURS, start_ours), (PEER, start_peer))[:: 1 if number % 2 == 0 else -1]:
            rows[name].append(start(folder))
    for ours, peer in zip(rows[OURS], rows[PEER], strict=True):
        if not abs(ours.loss - peer.loss) <= LOSS_TOLERANCE * ours.loss:
            raise SystemExit(f"not the same work: the loss is {ours.loss:.7f} (ours), {peer.loss:.7f} (TRL); no ratio is given")
    print(f"\n{'to the first finished update':<34}{'wall s':>10}{'CPU s':>10}     losses {rows[OURS][0].loss:.6f}, {rows[PEER][0].loss:.6f}")
    for name, started in rows.items():
        print(f"  {name:<32}{median(each.wall_s for each in started):>10.2f}{median(each.cpu_s for each in started):>10.2f}")
    wall, cpu = (median(getattr(o, key) / getattr(p, key) for o, p in zip(rows[OURS], rows[PEER], strict=True)) for key in ("wall_s", "cpu_s"))
    print(f"  {'ratio':<32}{wall:>10.2f}{cpu:>10.2f}   aim: {AIM_RATIO} at most")
    return {name: [{"wall_s": each.wall_s, "cpu_s": each.cpu_s, "loss": each.loss} for each in started] for name, started in rows.items()}


def make_inputs(folder: Path) -> None:
    """FOLDER/rows.jsonl, FOLDER/spec.yaml and FOLDER/peer.json; the model's folder is made by a dry run of the embedded spec."""
    rows = folder / "rows.jsonl"
    lines = [{"prompt": f"What is {n} times {n + 3}? " * (1 + n % 5), "completion": f"{n} times {n + 3} is {n * (n + 3)}."} for n in range(SAMPLES)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = {"rows": json.dumps(str(rows)), "samples": SAMPLES, "ranks": RANKS}
    (folder / "spec.yaml").write_text(SPEC.format(model="builtin:tiny-llama", **text))
    run_dir = RunDir(folder / "dry")
    command = [str(BIN / "ftlaunch"), "--spec", str(folder / "spec.yaml"), "--dry-run", "-o", str(run_dir.path)]
    subprocess.run(command, check=True, cwd=folder, env=environment_with(folder / "model_cache"), stdout=subprocess.DEVNULL)
    model = load_prepared(run_dir.prepared).model.path
    (folder / "spec.yaml").write_text(SPEC.format(model=json.dumps(str(model)), **text))
    config = json.loads(run_dir.ds_config.read_text())
    kept = {name: config[name] for name in ("optimizer", "zero_optimization", "gradient_clipping", "data_types") if name in config}
    kept |= {"train_micro_batch_size_per_gpu": SAMPLES // RANKS, "gradient_accumulation_steps": 1, "steps_per_print": 10**9}
    peer = {
        "model": str(model),
        "rows": str(rows),
        "ds_config": kept,
        "samples": SAMPLES,
        "ranks": RANKS,
        "updates": 5,
        "max_length": 1024,
        "learning_rate": 1e-3,
    }
    (folder / "peer.json").write_text(json.dumps(peer))


def start_ours(folder: Path) -> Started:
    """One launch of ours, ended after its first update."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    cache = Path(tempfile.mkdtemp(dir=folder))
    run_dir = RunDir(folder / "run")
    command = [str(BIN / "ftlaunch"), "--spec", str(folder / "spec.yaml"), "--no-export", "-o", str(run_dir.path)]
    return until_first_update(
        folder, command, environment_with(cache), run_dir.metrics, lambda: json.loads(run_dir.metrics.read_text().splitlines()[0])["loss"]
    )


def start_peer(folder: Path) -> Started:
    """One launch of the peer, ended after its first update."""
    done = folder / "peer_update"
    for path in (done, done.with_suffix(".loss")):
        path.unlink(missing_ok=True)
    cache = Path(tempfile.mkdtemp(dir=folder))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = Path(__file__).with_name("start_peer.py")
    command = [str(BIN / "deepspeed"), "--num_gpus", str(RANKS), "--no_local_rank", "--master_port", str(port), str(script), str(folder)]
    environment = environment_with(cache, HF_HOME=str(cache), HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    return until_first_update(folder, command, environment, done, lambda: float(done.with_suffix(".loss").read_text()))


def until_first_update(folder: Path, command: list[str], environment: dict[str, str], done: Path, loss: Callable[[], float]) -> Started:
    """Runs the command until the file `done` has come, reads the loss, and ends all processes."""
    log = folder / f"{Path(command[0]).name}.log"
    began = time.perf_counter()
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file)
    try:
        while not done.exists():
            if process.poll() is not None or time.perf_counter() - began > LIMIT_S:
                raise SystemExit(f"{' '.join(command)}: no update; its output ends with\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.01)
        wall_s, cpu_s = time.perf_counter() - began, cpu_seconds(process)
        return Started(wall_s=wall_s, cpu_s=cpu_s, loss=patiently(loss))
    finally:
        kill_tree(process)


def patiently(read: Callable[[], float]) -> float:
    """What `read` returns once the file it reads is whole."""
    for _ in range(1000):
        with contextlib.suppress(OSError, ValueError, IndexError):
            return read()
        time.sleep(0.01)
    raise SystemExit("the loss of the first update was not written")


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """Of a process, all below it, and those of them that have ended and were waited for."""
    root = psutil.Process(process.pid)
    total = 0.0
    for each in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(each.cpu_times()[:4])
    return total


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a process and all below it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        for each in (*root.children(recursive=True), root):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
    process.wait()


def environment_with(cache: Path, **more: str) -> dict[str, str]:
    """This process's environment with a cache of its own and one thread a rank."""
    return {**os.environ, "FTLAUNCH_CACHE": str(cache), "OMP_NUM_THREADS": "1", "PATH": f"{BIN}:{os.environ['PATH']}", **more}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
