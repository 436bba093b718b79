"""`ftlaunch data report|show|prepare|gc` on real files, as a user calls them. D10, E10."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

from tests.e2e.conftest import LIMIT_S, Cli
from tests.unit.data_specs import TINY, chat, spec
from tests.unit.live_processes import wait_until


def test_a_report_of_data_that_training_would_refuse(cli: Cli) -> None:
    spec(cli.folder)
    done = cli.run("data", "report", "spec.yaml", "--html", "--json", "-o", "out")
    assert done.returncode == 4 and "data.train_sets.talk: training would refuse this data: 2 bad rows in talk" in done.stderr
    facts = json.loads(done.stdout)
    assert facts == json.loads((cli.folder / "out/data_report.json").read_text()) and facts["refuses"] and facts["version"] == 1
    assert list(facts["sets"]) == ["talk", "pairs", "eval"]
    talk, pairs, held = facts["sets"].values()
    assert (talk["rows"], talk["samples"], talk["dropped"], talk["bad_rows"]) == (6, 3, {"bad_row": 2, "overlong": 1}, 2)
    assert talk["tokens_read"] == talk["tokens"] + talk["dropped_tokens"] and talk["longest"][0]["row"] == 6
    assert [(each["row"], each["line"]) for each in talk["first"]["bad"]] == [(2, 2), (5, 5)]
    assert [problem["where"] for problem in talk["refusals"]] == ["row 2", "row 5"]
    assert [json.loads(line)["row"] for line in Path(talk["rows_file"]).read_text().splitlines()] == [2, 5, 6]
    assert (talk["format"], talk["template"]["masks"], talk["copies"]["groups"]) == ("messages", "rendering", [[3, 4]])
    assert (pairs["format"], pairs["template"]["masks"], pairs["purpose"], held["purpose"]) == ("prompt_completion", "none", "train", "eval")
    # Weights 3 to 1 over the 5 samples that are left.
    assert {name: part["draws"] for name, part in facts["mix"].items()} == {"talk": 4, "pairs": 1}
    shared = {each["training"]: (each["rows"], each["prompts"], each["pairs"]) for each in facts["overlaps"]}
    assert shared == {"talk": (1, 2, [[1, 3], [2, 1]]), "pairs": (0, 0, [])}
    page = (cli.folder / "out/data_report.html").read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "<script" not in page
    text = (cli.folder / "out/data_report.txt").read_text()
    assert "[[four<|im_end|>]]" in text and "\x1b" not in text and "row 5" in text

    # D10: rows dropped by a rule that the spec names are no refusal; totals and the reason are told. An old page goes.
    done = cli.run("data", "report", "spec.yaml", "data.on_bad_row=drop", "-o", "out")
    assert done.returncode == 0, done.stderr
    assert "6 rows -> 3 samples; 2 dropped: bad; 1 dropped: longer than data.max_length" in done.stdout and "refused" not in done.stdout
    assert not (cli.folder / "out/data_report.html").exists()
    # The plan of a later run counts on what was prepared.
    planned = cli.run("plan", "spec.yaml", "data.on_bad_row=drop")
    assert "updates:" in planned.stdout and "lengths of the data" not in planned.stdout


def test_rows_are_shown_by_the_numbers_of_messages(cli: Cli) -> None:
    spec(cli.folder)
    # Rows need no hosts: a hostfile that is not there is no matter here.
    shown = json.loads(cli.run("data", "show", "spec.yaml", "--row", "3", "--json", "cluster.hosts=nowhere").stdout)
    assert (shown["set"], shown["file"].endswith("a.jsonl"), shown["line"], shown["outcome"]) == ("talk", True, 3, "kept")
    (sample,) = shown["samples"]
    assert sample["positions"] == list(range(shown["tokens"])) and not sample["supervised"][0]
    text = "".join(segment["text"] for segment in sample["segments"])
    assert text == "".join(sample["texts"]) == "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\nfour<|im_end|>\n"
    assert "".join(each for each, learned in zip(sample["texts"], sample["supervised"], strict=True) if learned) == "four<|im_end|>"
    gone = cli.run("data", "show", "spec.yaml", "--row", "4", "--set", "eval")
    assert gone.returncode == 4 and "there is no row 4: the set eval has 3 rows" in gone.stderr


def test_the_cache_is_prepared_listed_and_cleared(cli: Cli) -> None:
    # E10: progress is told, and the second time nothing is tokenised again.
    cli.environment["FTLAUNCH_CACHE"] = str(cli.folder / "cache")
    first = json.loads(cli.run("data", "prepare", *TINY, "--json").stdout)
    arrow = Path(first["sets"]["train"]["arrow"])
    assert first["sets"]["train"]["rows"] == 2000 and arrow.is_file() and arrow.is_relative_to(cli.folder / "cache")
    again = cli.run("data", "prepare", *TINY)
    assert again.returncode == 0 and "2,000 rows -> 2,000 samples" in again.stdout and "rows/s" not in again.stderr
    (entry,) = json.loads(cli.run("data", "gc", "--older-than", "0s", "--dry-run", "--json").stdout)["entries"]
    assert (entry["state"], entry["rows"], entry["made_of"], arrow.is_file()) == ("deleted", 2000, "builtin:extraction/train", True)
    assert "1 of 1 cleared away" in cli.run("data", "gc", "--all").stdout and not arrow.exists()


def test_ctrl_c_leaves_nothing_behind(cli: Cli) -> None:
    (cli.folder / "big.jsonl").write_text(chat("question " * 50, "answer " * 50) * 20_000)
    log = cli.folder / "log"
    with log.open("w") as output:
        asked = [cli.program, "data", "prepare", *TINY, "data.train.path=big.jsonl"]
        process = subprocess.Popen(asked, cwd=cli.folder, env=cli.environment, stdout=output, stderr=output)
        wait_until(lambda: "prepare" in log.read_text() and "reading" in log.read_text(), LIMIT_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
    told = log.read_text()
    assert f"stopped by SIGINT; to go on: ftlaunch data prepare {' '.join(TINY)} data.train.path=big.jsonl" in told and "Traceback" not in told
