"""A run keeps what a DeepSpeed JSON said, and needs the JSON no more."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.test_cli import ftlaunch
from tests.unit.test_ds_import import problems, resolve

SPEC = """\
model: {model_name_or_path: builtin:tiny-llama}
data: {train: {path: builtin:extraction/train}}
train: {max_steps: 2}
zero: {config: ds.json}
cluster: {slots: 2}
"""
DS = """\
{
  "zero_optimization": {"stage": 2, "allgather_bucket_size": 3e8, "round_robin_gradients": true},
  "comet": {"enabled": true, "api_key": "mine", "project": "p"}, // never copied
  "_hf_token": "of a note",
  "steps_per_print": 50
}
"""


def test_a_run_folder_keeps_the_json(tmp_path: Path) -> None:
    (tmp_path / "ftlaunch.yaml").write_text(SPEC)
    (tmp_path / "ds.json").write_text(DS)
    cache = {"FTLAUNCH_CACHE": str(tmp_path / "cache")}
    ended = ftlaunch(tmp_path, "--dry-run", "-o", "r", **cache)
    assert ended.returncode == 0, ended.stderr
    assert "warning: ds.json:2: zero_optimization.round_robin_gradients: ignored" in ended.stderr
    kept = json.loads((tmp_path / "r" / "zero_config.json").read_text())
    assert kept["_from"] == str(tmp_path / "ds.json") and len(kept["_warnings"]) == 2 and kept["zero_optimization"]["allgather_bucket_size"] == 3e8
    assert "comet" not in kept and "_hf_token" not in kept and "mine" not in (tmp_path / "r" / "resolved.json").read_text()
    (tmp_path / "ds.json").unlink()
    again = ftlaunch(tmp_path, "--dry-run", "--resume", "r", "--zero", "3", **cache)
    assert again.returncode == 0, again.stderr
    config = json.loads((tmp_path / "r" / "ds_config.json").read_text())
    assert config["steps_per_print"] == 50 and config["zero_optimization"]["stage"] == 3 and "allgather_bucket_size" not in config["zero_optimization"]


def test_a_secret_is_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, '{"wandb": {"team": "hf_%s"}}' % ("a1B2c3" * 6))
    assert found.where == "wandb.team" and "a Hugging Face token" in found.what


def test_without_a_json_there_is_no_copy(tmp_path: Path) -> None:
    assert resolve(tmp_path, "{}", zero={"config": ""}).zero_config == ""
