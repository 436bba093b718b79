"""`ftlaunch scale --hosts`: points on one host and on two, reached by ssh."""

from __future__ import annotations

import json
import subprocess

from tests.multinode.launches import FTLAUNCH, LIMIT_S, Launcher


def test_one_host_and_two(launcher: Launcher) -> None:
    small = ("--windows", "1", "--window-updates", "2", "--warm-up", "1", "batch.global_batch_size=4", "data.eval=null")
    hosts = ("--hosts", str(launcher.hostfile()))
    ended = subprocess.run(
        [FTLAUNCH, "scale", *hosts, "--ranks", "1,2", "--zero", "3", "-o", "scale", *small],
        cwd=launcher.folder,
        env=launcher.environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads((launcher.folder / "scale" / "scale.json").read_text())
    first, second = launcher.cluster.names
    assert [point["hosts"] for point in result["points"]] == [{first: 1}, {first: 1, second: 1}]
    assert [point["threads"] for point in result["points"]] == [1, 1] and all(point["cores"] for point in result["points"])
    assert result["agreement"]["passed"] and result["agreement"]["largest_loss_gap"] <= 1e-5
    # No host has room for more than its slots.
    refused = subprocess.run(
        [FTLAUNCH, "scale", *hosts, "--ranks", "3"], cwd=launcher.folder, env=launcher.environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert refused.returncode == 2 and "3 ranks are more than the 2 slots" in refused.stderr
