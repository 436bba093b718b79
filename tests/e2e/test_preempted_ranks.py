"""Real ranks that are asked to stop, by whoever started them: status 75 on each, no failure told, and a checkpoint to go on from. H03, H04, I05."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from ftcore.checkpoint.find import find_newest_whole
from ftcore.data.cache import SampleSet
from ftcore.data.prepared import Prepared, PreparedSet
from ftcore.spec.errors import PREEMPTED
from ftcore.spec.evaluation import EvaluationDir, EvaluationRequest
from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import BatchSection, DataSection, DataSet, ModelSection, Spec, TrainSection
from tests.e2e.rank_harness import LIMIT_S, StartedRank, ranks_of, start_process
from tests.own_time import OwnTime
from tests.ranks.jobs import make_run, read_lines
from tests.ranks.pool import kept_port
from tests.ranks.small_model import save_small_llama, write_uneven_samples
from tests.ranks.specs import make_spec
from tests.unit.live_processes import wait_until

LONG = 100_000
"""Updates that no test waits for."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """What a preparation hands to the ranks."""
    folder = tmp_path_factory.mktemp("prepared")
    samples = write_uneven_samples(folder / "samples.arrow")
    held = PreparedSet(arrow=str(folder / "samples.arrow"), samples=len(samples), fingerprint=samples.fingerprint, **asdict(samples.counts))
    return Prepared(train={"train": held}, eval={}, model=save_small_llama(folder / "model"))


def make_run_folder(folder: Path, prepared: Prepared, *, updates: int = LONG, stage: int = 2, world_size: int = 2) -> Path:
    run_dir = make_run(folder, make_spec(stage, updates=updates), world_size)
    run_dir.prepared.write_text(prepared.to_json())
    return folder


def require_stopped(run: Path, ranks: list[StartedRank]) -> int:
    """Every rank has ended well with 75 and nothing looks like a failure; returns the updates done."""
    assert [rank.ended() for rank in ranks] == [PREEMPTED] * len(ranks), ranks[0].log.read_text()[-3000:]
    [event] = [each for rank in ranks for each in rank.told if each["event"] == "preempted"]
    for rank in ranks:
        assert "error" not in rank.names() and "Traceback" not in rank.log.read_text()
    assert not list(run.glob("logs/*/*.error.json"))
    found = find_newest_whole(run / "checkpoints").found
    assert found is not None and found.path.name == event["path"] and found.manifest.update == event["update"]
    return int(event["update"])


def test_one_rank_is_asked_and_all_stop(prepared: Prepared, tmp_path: Path) -> None:
    run = make_run_folder(tmp_path / "run", prepared)
    with ranks_of("ftcore.run", run) as ranks:
        for number, rank in enumerate(ranks):
            assert rank.until("ready")["rank"] == number
            assert rank.until("at", rank=number, stage="train")["update"] >= 0
        ranks[0].until("update", update=5)
        send_from_elsewhere(ranks[1].process.pid, signal.SIGTERM)
        with OwnTime() as own:
            assert require_stopped(run, ranks) >= 5
        assert own.seconds < 10
        # At most one a second, where a rank trains dozens of updates. One may be held up on its way, and be nearer to the next.
        times = [each["time"] for each in ranks[1].told if each["event"] == "at"]
        assert len(times) <= times[-1] - times[0] + 2


def send_from_elsewhere(pid: int, signum: int) -> None:
    """A signal whose sender is not the rank's parent."""
    child = os.fork()
    if child == 0:
        os.kill(pid, signum)
        os._exit(0)
    os.waitpid(child, 0)


def test_asked_while_importing_stops_at_the_first_point_and_goes_on_later(prepared: Prepared, tmp_path: Path) -> None:
    run = make_run_folder(tmp_path / "run", prepared, updates=3)
    with ranks_of("ftcore.run", run) as ranks:
        ranks[0].process.send_signal(signal.SIGUSR2)
        assert [rank.ended() for rank in ranks] == [PREEMPTED] * 2
        # The other rank hears of it when it has begun; an update may be under way by then.
        assert next(each for each in ranks[0].told if each["event"] == "preempted")["path"] in ("", "update_00000001")
    with ranks_of("ftcore.run", run) as ranks:
        assert [rank.ended() for rank in ranks] == [0, 0]
    assert [line["update"] for line in read_lines(run / "metrics.jsonl")] == [1, 2, 3]


def test_the_supervisor_ends_a_rank_that_waits_in_a_collective(prepared: Prepared, tmp_path: Path) -> None:
    run = make_run_folder(tmp_path / "run", prepared)
    with ranks_of("ftcore.run", run) as ranks:
        ranks[0].until("update", update=2)
        ranks[1].process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_waiting(ranks[0].process.pid), LIMIT_S)
        # Asked to stop first: that takes both, and one does not answer.
        send_from_elsewhere(ranks[0].process.pid, signal.SIGUSR2)
        wait_until(lambda: not is_pending(ranks[0].process.pid, signal.SIGUSR2), LIMIT_S)
        with OwnTime() as own:
            ranks[0].process.terminate()
            assert ranks[0].ended() == -signal.SIGTERM
        assert own.seconds < 1


def is_waiting(pid: int) -> bool:
    """Whether a process computes nothing: it takes no time of a processor that is worth a tick in half a second."""
    before = psutil.Process(pid).cpu_times()
    time.sleep(0.5)
    after = psutil.Process(pid).cpu_times()
    return after.user + after.system - before.user - before.system < 0.05


def is_pending(pid: int, signum: int) -> bool:
    """Whether a signal was sent to a process that no thread of it has taken yet."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(fields["ShdPnd"], 16) >> (signum - 1) & 1)


def world_info() -> str:
    return base64.urlsafe_b64encode(json.dumps({"localhost": [0, 1]}).encode()).decode()


def other_starter(name: str, port: int) -> list[str]:
    if name == "torchrun":
        return ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port), "-m", "ftcore.run"]
    where = [f"--world_info={world_info()}", "--node_rank=0", "--master_addr=127.0.0.1", f"--master_port={port}"]
    return ["-m", "deepspeed.launcher.launch", *where, "--no_local_rank", "--module", "ftcore.run"]


@pytest.mark.parametrize("starter", ["torchrun", "deepspeed"])
def test_ranks_that_another_program_starts(starter: str, prepared: Prepared, tmp_path: Path) -> None:
    """They block the signals themselves, early enough. Such a program ends ranks that are left when the first one has ended: the save is whole by then."""
    run = make_run_folder(tmp_path / "run", prepared)
    with kept_port() as port:
        started = start_process([sys.executable, *other_starter(starter, port), str(run)], run / "log", {"DS_ACCELERATOR": "cpu"}, by_supervisor=False)
        pids: list[int] = []
        try:
            deadline = time.monotonic() + LIMIT_S
            while len(read_lines(run / "metrics.jsonl") if (run / "metrics.jsonl").exists() else []) < 3:
                assert time.monotonic() < deadline and started.process.poll() is None, started.log.read_text()[-3000:]
                time.sleep(0.05)
            pids = ranks_below(started.process.pid)
            assert len(pids) == 2
            os.kill(max(pids), signal.SIGUSR2)
            assert started.ended() != 0
        finally:
            started.close()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    [event] = [line for line in read_lines(run / "events.jsonl") if line["event"] == "preempted"]
    found = find_newest_whole(run / "checkpoints").found
    assert found is not None and found.manifest.update == event["update"] >= 3
    assert "Signal 12" not in started.log.read_text()


def ranks_below(pid: int) -> list[int]:
    """The pids of the ranks that a process has started; what ends while it is looked at is none."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child.pid] if "ftcore.run" in child.cmdline() else []
    return found


def evaluation_folder(folder: Path, rows: int, metrics: tuple[str, ...] = ()) -> Path:
    """A request for an evaluation of the embedded model on so many rows."""
    data = folder / "rows.jsonl"
    folder.mkdir()
    data.write_text("".join(json.dumps({"prompt": f"{row} and one is ", "completion": str(row + 1)}) + "\n" for row in range(rows)))
    held = DataSet(path=str(data), format="prompt_completion")
    spec = Spec(
        model=ModelSection(model_name_or_path="builtin:tiny-llama", dtype="float32"),
        data=DataSection(train=held, eval=held),
        batch=BatchSection(global_batch_size=2, micro_batch_tokens=512),
        train=TrainSection(max_steps=1, precision="fp32"),
    )
    resolved = ResolvedSpec(spec=spec, hosts=(Host(name="localhost", slots=2),), sources={}, cache_dir=str(folder / "cache"))
    EvaluationDir(folder).request.write_text(EvaluationRequest(kind="base", name="base", resolved=resolved).to_json())
    RunDir(folder).resolved.write_text(resolved.to_json())
    RunDir(folder).ds_config.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 0}}))
    return folder


def test_an_evaluation_is_left_between_micro_steps(tmp_path: Path) -> None:
    folder = evaluation_folder(tmp_path / "evaluation", 5_000)
    preparation = start_process([sys.executable, "-m", "ftcore.prepare_evaluation", str(folder)], folder / "log", {})
    assert preparation.ended() == 0, preparation.log.read_text()[-3000:]
    preparation.close()
    with ranks_of("ftcore.evaluate_model", folder) as ranks:
        for rank in ranks:
            rank.until("at", stage="evaluate")
        send_from_elsewhere(ranks[1].process.pid, signal.SIGUSR2)
        assert [rank.ended() for rank in ranks] == [PREEMPTED] * 2
        assert ranks[0].names().count("preempted") == 1 and "error" not in ranks[0].names() + ranks[1].names()
    assert not EvaluationDir(folder).result.exists()


def test_a_preparation_leaves_nothing_half_made(tmp_path: Path) -> None:
    """Asked to stop in the middle of its tokenising, and made anew afterwards."""
    folder = evaluation_folder(tmp_path / "run", 8_000)
    argv = [sys.executable, "-m", "ftcore.prepare", str(folder)]
    preparation = start_process(argv, folder / "log", {})
    preparation.until("progress", stage="prepare", text="data.train: tokenising")
    preparation.process.send_signal(signal.SIGTERM)
    assert preparation.ended() == PREEMPTED and "error" not in preparation.names()
    preparation.close()
    assert not RunDir(folder).prepared.exists()
    left = [path for path in (folder / "cache").rglob("*") if path.is_file() and (path.name.startswith(".") or path.suffix == ".arrow")]
    assert not left
    again = start_process(argv, folder / "log", {})
    assert again.ended() == 0, again.log.read_text()[-3000:]
    again.close()
    assert len(SampleSet.open(json.loads(RunDir(folder).prepared.read_text())["train"]["train"]["arrow"])) == 8_000
