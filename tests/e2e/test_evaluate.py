"""`ftlaunch evaluate`: before training, a run's checkpoint on other ranks and stages, an adapter; and two results side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Cli

SETS = ("--set", "data.eval=null", "--set", "data.eval_sets={target: {path: chat.jsonl}, plain: {path: plain.jsonl, format: prompt_completion}}")
ANSWERS = ("--set", "evaluation.metrics=[exact_match,rouge_l]", "--set", "evaluation.max_rows=3", "--set", "evaluation.max_new_tokens=6")


def write_sets(folder: Path) -> None:
    chat = [{"messages": [{"role": "user", "content": f"count to {n}"}, {"role": "assistant", "content": "1 " * n}]} for n in range(1, 8)]
    plain = [{"prompt": f"{n} and one is ", "completion": f"{n + 1}"} for n in range(6)]
    for name, rows in (("chat", chat), ("plain", plain)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def result(folder: Path) -> Any:
    return json.loads((folder / "evaluation.json").read_text())


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_before_and_after(cli: Cli) -> None:
    write_sets(cli.folder)
    common = (*SETS, "--set", "train.precision=fp32")
    before = cli.run("evaluate", "base", *common, *ANSWERS, "--zero", "0", "-o", "before")
    assert before.returncode == 0, before.stderr
    trained = cli.run(*common, "--set", "method.type=lora", "--zero", "3", "--set", "train.max_steps=6", "--set", "optimizer.learning_rate=1e-2", "-o", "run")
    assert trained.returncode == 0, trained.stderr
    after = cli.run("evaluate", "run", *ANSWERS, "--zero", "3", "--against", "before", "-o", "after")
    assert after.returncode == 0, after.stderr
    old, new = result(cli.folder / "before"), result(cli.folder / "after")
    assert (old["model"]["kind"], new["model"]["kind"], new["model"]["update"]) == ("base", "run", 6)
    assert {name: held["rows"] for name, held in new["sets"].items()} == {"target": 7, "plain": 6}
    assert all(name in after.stdout for name in ("target", "plain", "rouge_l", "95 % interval"))
    comparison = json.loads((cli.folder / "after" / "comparison.json").read_text())
    assert {(line["set"], line["metric"]) for line in comparison["lines"]} == {(s, m) for s in ("target", "plain") for m in ("loss", "exact_match", "rouge_l")}
    events = [event for event in lines(cli.folder / "run" / "events.jsonl") if event["event"] == "evaluation"]
    for found, update in ((old, 0), (new, 6)):
        told = {event["set"]: event["loss"] for event in events if event["update"] == update}
        assert {name: held["loss"] for name, held in found["sets"].items()} == pytest.approx(told, rel=1e-5)
    predictions = lines(cli.folder / "after" / "predictions" / "plain.jsonl")
    assert [line["row"] for line in predictions] == [1, 2, 3] and predictions[0]["prompt"] == "0 and one is "
    adapter = cli.run("evaluate", "run/model", *common, *ANSWERS, "--zero", "1", "-o", "adapter")
    assert adapter.returncode == 0, adapter.stderr
    assert {name: held["loss"] for name, held in result(cli.folder / "adapter")["sets"].items()} == pytest.approx(
        {name: held["loss"] for name, held in new["sets"].items()}, rel=1e-5
    )
    compared = cli.run("evaluate", "--compare", "after", "adapter")
    assert compared.returncode == 0 and "same" in compared.stdout and "worse" not in compared.stdout
    refused_by_base(cli, common)


def refused_by_base(cli: Cli, common: tuple[str, ...]) -> None:
    config = cli.folder / "run" / "model" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "base_model_name_or_path": "other/model"}))
    record = cli.folder / "run" / "model" / "ftlaunch_export.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "base": "other/model", "base_digest": ""}))
    refused = cli.run("evaluate", "run/model", *common, "-o", "refused")
    assert refused.returncode == 2 and "was trained on other/model" in refused.stderr and "Traceback" not in refused.stderr
    missing = cli.run("evaluate", "run", "--update", "5")
    assert missing.returncode == 5 and "there is no checkpoint after update 5" in missing.stderr


def test_mistakes_come_all_at_once(cli: Cli) -> None:
    done = cli.run("evaluate", "./nowhere", "--update", "3", "--set", "data.eval=null", "--set", "evaluation.metrics=[exact]")
    assert done.returncode == 2
    for words in ("no such file or folder", "--update choose nothing", "did you mean `exact_match`", "no rows to evaluate on"):
        assert words in done.stderr
    assert cli.run("evaluate", "base", "--set", "data.eval=null").returncode == 2
    assert cli.run("evaluate").returncode == 2
    assert cli.run("evaluate", "base", "--compare", "a", "b").returncode == 2
    assert cli.run("evaluate", "base", "--against", "nowhere").returncode == 5
    assert not (cli.folder / "evaluations").exists()
