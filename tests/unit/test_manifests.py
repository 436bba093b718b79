"""`ftlaunch submit --to k8s|sky`: what is rendered, refused, and what the rendered shell text does."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from launcher.hostfile import read_hostfile
from tests.unit.test_cli import ftlaunch
from tests.unit.test_submit import SPEC, program

SCHEMAS = Path(__file__).resolve().parents[1] / "cases" / "schemas"
MANIFEST = ("submit", "spec.yaml", "--nodes", "2", "--slots-per-node", "8", "--dry-run", "--image", "ghcr.io/me/ft:1", "--volume", "runs", "-o", "runs/a")


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


def test_manifests_need_their_options(tmp_path: Path, spec: Path) -> None:
    ended = ftlaunch(tmp_path, "submit", "spec.yaml", "--slots-per-node", "1", "--dry-run", "--to", "sky", "--image", "a b", "-o", "/abs")
    assert ended.returncode == 2 and all(f"{option}: " in ended.stderr for option in ("--image", "--volume", "-o", "--accelerator"))


NOT_MAPPED = {"--partition": "p", "--account": "a", "--qos": "q", "--constraint": "c", "--sbatch-arg": "--mem=0", "--array": "lr=1e-5", "--chain": "2"}


@pytest.mark.parametrize(("engine", "more"), [("k8s", {"--accelerator": "H100"}), ("sky", {"--time": "2h", "--accelerator": "H100"})])
def test_what_a_manifest_can_not_say_is_refused_all_at_once(tmp_path: Path, spec: Path, engine: str, more: dict[str, str]) -> None:
    options = {**NOT_MAPPED, **more}
    given = [word for item in options.items() for word in item]
    ended = ftlaunch(tmp_path, *MANIFEST, "--to", engine, "--cpu", *given, COLUMNS="1000")
    assert ended.returncode == 2 and f"a manifest for {engine} has no place for" in ended.stderr and ended.stdout == ""
    assert all(name in ended.stderr for name in options)


# The hosts' keys are new to ssh, which may not ask: both engines' scripts say so to it, and hand the options on.
@pytest.mark.parametrize("engine", ["k8s", "sky"])
def test_the_script_of_a_manifest_passes_options_on(tmp_path: Path, spec: Path, engine: str) -> None:
    manifest = yaml.safe_load(ftlaunch(tmp_path, *MANIFEST, "--to", engine, "--cpu", "--no-export").stdout)
    text = manifest["run"] if engine == "sky" else manifest["spec"]["trainer"]["command"][2]
    text = text.replace("/tmp/", f"{tmp_path}/").replace("=/ftlaunch/", f"={tmp_path}/")
    program(tmp_path / "bin", "ftlaunch", "print(os.environ['FTLAUNCH_SSH_ARGS']); print('|'.join(sys.argv[1:]))")
    env = {"FTLAUNCH_SPEC": "", "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": "/root", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1"}
    for begins in (True, False):
        ssh, arguments = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, check=True).stdout.splitlines()
        assert "-oStrictHostKeyChecking=accept-new" in shlex.split(ssh)
        assert arguments.startswith("--spec|" if begins else "--resume|") and "--no-export" in arguments.split("|")
        (tmp_path / "runs" / "a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / "a" / "resolved.json").touch()


@pytest.mark.parametrize(
    ("engine", "schema", "more"),
    [("k8s", "trainjob", []), ("k8s", "trainjob", ["--cpu"]), ("sky", "sky_task", ["--accelerator", "H100"]), ("sky", "sky_task", ["--cpu"])],
)
def test_manifests_fit_the_published_schemas(tmp_path: Path, spec: Path, engine: str, schema: str, more: list[str]) -> None:
    ended = ftlaunch(tmp_path, *MANIFEST, "--to", engine, *more)
    assert ended.returncode == 0, ended.stderr
    rules = json.loads((SCHEMAS / f"{schema}.json").read_text())
    jsonschema.validate(yaml.safe_load(ended.stdout), rules)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**yaml.safe_load(ended.stdout), "nodes": 2}, rules)


def test_the_script_of_a_manifest_begins_or_goes_on(tmp_path: Path, spec: Path) -> None:
    """The shell text itself, run with an ftlaunch that shows what it was given."""
    task = yaml.safe_load(ftlaunch(tmp_path, *MANIFEST, "--to", "sky", "--cpu").stdout)
    text = task["run"].replace("/tmp/", f"{tmp_path}/").replace("=/ftlaunch/", f"={tmp_path}/")
    program(tmp_path / "bin", "ftlaunch", "print('|'.join(sys.argv[1:]))")
    env = {**task["envs"], "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": "/root", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    shell = ["bash", "-c", text]
    begun = subprocess.run(shell, env=env, capture_output=True, text=True, check=True).stdout
    assert begun == f"--spec|{tmp_path}/ftlaunch-spec.yaml|-o|{tmp_path}/runs/a|--hosts|{tmp_path}/ftlaunch-hostfile\n"
    assert (tmp_path / "ftlaunch-spec.yaml").read_text() == SPEC
    assert [host.name for host in read_hostfile(tmp_path / "ftlaunch-hostfile")] == ["10.0.0.1", "10.0.0.2"]
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "resolved.json").touch()
    assert subprocess.run(shell, env=env, capture_output=True, text=True, check=True).stdout.startswith(f"--resume|{tmp_path}/runs/a|--hosts|")
    assert subprocess.run(shell, env={**env, "SKYPILOT_NODE_RANK": "1"}, capture_output=True, text=True, check=True).stdout == ""


def test_the_manifests_say_the_same(tmp_path: Path, spec: Path) -> None:
    job = yaml.safe_load(ftlaunch(tmp_path, *MANIFEST, "--to", "k8s", "--set", "train.seed=7", "--time", "2h").stdout)
    task = yaml.safe_load(ftlaunch(tmp_path, *MANIFEST, "--to", "sky", "--accelerator", "H100", "--set", "train.seed=7").stdout)
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"], trainer["resourcesPerNode"]["limits"]) == (2, 8, {"nvidia.com/gpu": "8"})
    assert job["spec"]["activeDeadlineSeconds"] == 7200 and job["metadata"]["name"] == "ft-runs-a"
    assert (task["num_nodes"], task["resources"]["accelerators"], task["volumes"]) == (2, "H100:8", {"/ftlaunch": "runs"})
    assert "--set train.seed=7" in trainer["command"][2] and "--set train.seed=7" in task["run"]
    assert {variable["name"]: variable["value"] for variable in trainer["env"]} == task["envs"]
    assert json.dumps(job).count("claimName") == 2
