"""`ftlaunch cost`: what it prints, its JSON, its statuses, and that it imports nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from ftcore.spec.errors import SpecError
from launcher.verbs import cli
from tests.unit.live_processes import environment
from tests.unit.test_run_cost import made_run

HEAVY = ("torch", "transformers", "deepspeed", "numpy", "pyarrow", "peft", "matplotlib", "rich")
SMALL = ("train.max_steps=1000", "--gpu", "h100-80", "--ranks", "1,8")
PRICES = ("--price", "2.5", "--spot-price", "0.9", "--interruptions-per-day", "2", "--currency", "EUR")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def cost(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["cost", *arguments], catch_exceptions=False)


def problems(*arguments: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        cost(*arguments)
    return [problem.where for problem in caught.value.problems]


def test_it_imports_nothing_heavy(tmp_path: Path) -> None:
    program = "import sys; from launcher.cli import main; status = main(['cost']); print(*sys.modules, sep='\\n', file=sys.stderr); sys.exit(status)"
    ended = subprocess.run([sys.executable, "-c", program], env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert not {name.partition(".")[0] for name in ended.stderr.split()} & set(HEAVY)


def test_plans_of_a_spec() -> None:
    done = cost(*SMALL, *PRICES, "--deadline", "24h")
    assert done.exit_code == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    command = next(at for at, line in enumerate(lines) if line.startswith("    ftlaunch launch "))
    assert lines[3].startswith("The cheapest plan that meets 24 h: ") and lines[command - 1].endswith(" EUR")
    assert "price EUR" in lines[command + 2] and lines[command + 3].endswith(" met")
    found = json.loads(cost(*SMALL, *PRICES, "--deadline", "24h", "--json").stdout)
    assert found["schema"] == 1 and found["kind"] == "plans" and found["deadline_s"] == 86400 and found["deadline_met"] is True
    assert found["prices"] == {"on_demand": 2.5, "spot": 0.9, "interruptions_per_day": 2.0, "currency": "EUR"}
    assert lines[command].strip() == found["plans"][0]["command"] and set(found["overheads"]) == {"1"}
    for plan in found["plans"]:
        rate = 2.5 if plan["market"] == "on demand" else 0.9
        assert plan["price"]["expected"] == pytest.approx(rate * plan["device_hours"]["expected"])
        assert plan["per_million"] == pytest.approx(plan["price"]["expected"] / plan["supervised_tokens"] * 1e6)


def test_a_spec_file_says_the_prices() -> None:
    Path("my.yaml").write_text(
        "model: {model_name_or_path: 'builtin:tiny-llama'}\n"
        "data: {train: {path: 'builtin:extraction/train'}, max_length: 512}\n"
        "hardware: {accelerator: a100-80, price_per_hour: 1.5, spot_price_per_hour: 0.5, interruptions_per_day: 1, currency: CHF}\n"
    )
    done = cost("my.yaml", "--ranks", "2", "--elastic", "--all")
    assert done.exit_code == 0 and "builtin:tiny-llama on a100-80" in done.stdout and " CHF" in done.stdout and "ftlaunch launch my.yaml" in done.stdout
    assert "--elastic" in done.stdout


def test_without_prices_there_are_times_and_a_warning() -> None:
    done = cost(*SMALL)
    assert done.exit_code == 0 and "The fastest plan: " in done.stdout and "device-hours" in done.stdout and "price" not in done.stdout.splitlines()[6]
    assert "warning: no price of an accelerator is known: give --price" in done.stderr
    spot = cost(*SMALL, "--price", "2", "--spot-price", "1")
    assert "spot hosts are left out" in spot.stderr and " spot " not in spot.stdout


def test_a_deadline_that_is_too_near_is_status_7() -> None:
    done = cost(*SMALL, *PRICES, "--deadline", "2s")
    assert done.exit_code == 7 and "No plan meets 2 s. The fastest: " in done.stdout and "What to do: " in done.stdout
    assert json.loads(cost(*SMALL, *PRICES, "--deadline", "2s", "--json").stdout)["deadline_met"] is False


def test_wrong_options_are_told_together() -> None:
    assert problems("--deadline", "soon", "--ranks", "x", "--wait-time", "1y", "--save-time", "", "--start-time", "-1") == [
        *("--start-time", "--save-time", "--wait-time", "--deadline", "--ranks"),
    ]
    assert problems(*SMALL, "--price", "-1", "--spot-price", "1e9") == ["--price", "--spot-price"]
    assert problems("--gpu", "h1000") == ["--gpu"]
    assert problems(*SMALL, "--network", "fast") == ["--network"]


def test_a_run_and_what_is_no_part_of_it(tmp_path: Path) -> None:
    made_run(tmp_path / "run")
    done = cost("run")
    assert done.exit_code == 0 and done.stdout.startswith("run: ") and "3.20 EUR" in done.stdout
    assert "6.40 CHF" in cost("run", "--price", "7.2", "--currency", "CHF").stdout
    assert json.loads(cost("run", "--json").stdout)["kind"] == "run"
    given = (("--deadline", "1h"), ("--ranks", "2"), ("--notice",), ("--set", "train.max_steps=1"), ("--measured", "run"))
    for more in (*given, ("--zero", "0"), ("--spot-price", "0"), ("--all",), ("--exclude", "a")):
        refused = cost("run", *more)
        assert refused.exit_code == 2 and f"{more[0]} belongs to a SPEC" in refused.stderr
    assert "one RUN" in cost("run", "train.max_steps=1").stderr and "one RUN" in cost("run", "run").stderr
    assert "--gain is of a RUN" in cost("--gain", "0.1").stderr


def test_the_help_names_both() -> None:
    text = cost("--help").stdout
    assert "[SPEC|RUN]" in click.unstyle(text) and "Status 7" in text
