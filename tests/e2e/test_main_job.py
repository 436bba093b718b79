"""What the README says a user does."""

from __future__ import annotations

import json
from pathlib import Path

from launcher.memory.cost_text import spent
from tests.e2e.conftest import TINY, Cli
from tests.unit.test_metrics_schema import faults

ROOT = Path(__file__).parents[2]
FILES = ("spec.yaml", "environment.json", "resolved.json", "ds_config.json", "hostfile", "plan.json", "plan.txt", "node_00.sh", "metrics.jsonl", "events.jsonl")
FIELDS = (
    *("update", "epoch", "loss", "grad_norm", "learning_rate", "supervised_tokens", "tokens", "tokens_per_s", "supervised_tokens_per_s"),
    *("data_wait_seconds", "seconds_forward", "seconds_backward", "seconds_step", "peak_memory_bytes"),
)
FEW = ("--set", "train.max_steps=2")


def test_hosts_and_stage_then_export(cli: Cli) -> None:
    """--hosts hostfiles/local --zero 3: the run folder, a model that loads, metrics with every field."""
    done = cli.run("--hosts", str(ROOT / "hostfiles" / "local"), "--zero", "3", "-o", "runs/a", *FEW, *TINY)
    assert done.returncode == 0, done.stderr
    run = cli.folder / "runs" / "a"
    for name in FILES:
        assert (run / name).is_file(), name
    assert json.loads((run / "ds_config.json").read_text())["zero_optimization"]["stage"] == 3
    resolved = json.loads((run / "resolved.json").read_text())
    assert resolved["sources"]["zero.stage"] == "--zero"
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    for name in FIELDS:
        assert last[name] is not None, name
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [faults("metrics", last), [fault for event in events for fault in faults("events", event)]] == [[], []]
    work = json.loads((run / "work.json").read_text())
    assert work["token_flops"] > 0 and work["peak_flops"] is None and last["mfu"] is None, "a CPU's peak is not known unless somebody asks for it"
    counted = next(event for event in events if event["event"] == "launch_ended")["seconds"]
    assert 0 < last["phase_seconds"] < counted and events[0]["world_size"] == last["world_size"]
    assert f"  device time       {spent(2 * counted / 3600, None, '')}\n" in done.stdout, "export included"
    assert "report            runs/a/report.html" in done.stdout and "</html>" in (run / "report.html").read_text(encoding="utf-8")
    exported = cli.run("export", "runs/a", "--to", "out")
    assert exported.returncode == 0, exported.stderr
    assert (cli.folder / "out" / "model.safetensors").is_file() and (cli.folder / "out" / "tokenizer.json").is_file()
    again = cli.run("--resume", "runs/a")
    assert again.returncode == 0, again.stderr


def test_dry_run_starts_no_rank(cli: Cli) -> None:
    done = cli.run("--spec", str(ROOT / "launcher" / "default.yaml"), "--hosts", str(ROOT / "hostfiles" / "2node"), "--dry-run", "-o", "dry")
    assert done.returncode == 0, done.stderr
    run = cli.folder / "dry"
    assert {"node_00.sh", "node_01.sh", "plan.txt", "ds_config.json"} <= {path.name for path in run.iterdir()}
    assert "--world-size 8" in (run / "node_01.sh").read_text()
    assert not (run / "metrics.jsonl").exists() and not (run / "checkpoints").exists()


def test_remote_hosts_are_not_there_yet(cli: Cli) -> None:
    done = cli.run("--hosts", str(ROOT / "hostfiles" / "2node"))
    assert done.returncode == 3
    assert "node1" in done.stderr and "Traceback" not in done.stderr


def test_a_rank_that_fails_is_named(cli: Cli) -> None:
    """A learning rate that blows up: status 6, the reason, no traceback of ours, the earlier checkpoint usable."""
    blows_up = ("optimizer.learning_rate=100", "optimizer.max_grad_norm=0", "train.max_steps=20", "optimizer.type=sgd")
    done = cli.run("-o", "run", *TINY, *blows_up)
    assert done.returncode == 6, (done.returncode, done.stderr)
    assert "no parameter was changed" in done.stderr and "Traceback" not in done.stderr
    events = [json.loads(line) for line in (cli.folder / "run" / "events.jsonl").read_text().splitlines()]
    assert any(event["event"] == "failed_update" and event["micro_steps"][0]["samples"] for event in events)
