"""`make demo`'s command with fewer updates and questions: a real pretrained model, LoRA, ZeRO-3, two ranks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]


def test_demo(tmp_path: Path) -> None:
    run = tmp_path / "run"
    # The cache of this user, where the unit tests have converted the GGUF file already.
    command = [sys.executable, "-m", "benchmarks.demo", "--max-steps", "4", "--rows", "2", "--output", str(run)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = re.search(r"evaluation loss per supervised token .*?(\d\.\d{4})\s+(\d\.\d{4})", done.stdout)
    assert losses is not None, done.stdout
    before, after = float(losses[1]), float(losses[2])
    assert after < before
    for words in ("valid JSON object (of 2)", "match exactly (of 2)", "before ", "after ", "expected ", "tokens/s", "The run folder"):
        assert words in done.stdout
    assert json.loads((run / "ds_config.json").read_text())["zero_optimization"]["stage"] == 3
    adapter = load_file(run / "model" / "adapter_model.safetensors")
    assert len(adapter) == 30 * 7 * 2 and all(tensor.numel() for tensor in adapter.values())
