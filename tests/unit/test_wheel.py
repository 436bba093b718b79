"""What `pip install` puts on a machine works without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ftcore.spec.names import CHAT_TEMPLATES

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "launcher", "ftcore", "ds_configs", "hostfiles", "specs")
DATA = (
    "ds_configs/zero0.json",
    "ds_configs/zero3_nvme.json",
    *(f"ftcore/data/templates/{name}.jinja" for name in CHAT_TEMPLATES),
    "ftcore/data_report/data_report.html.jinja",
    "ftcore/spec/spec.schema.json",
    "hostfiles/local",
    "launcher/default.yaml",
    "launcher/schema/ds_config.schema.json",
    "specs/smollm2-lora.yaml",
)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of a wheel built from a copy of the tree, so that nothing is left in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "tree").mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / "tree" / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, folder / "tree" / part)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(folder / "tree")], check=True, capture_output=True, text=True)
    (wheel,) = folder.glob("ftlaunch-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site-packages")
    return folder / "site-packages"


def test_it_holds_every_module_and_data_file(unpacked: Path) -> None:
    modules = [path.relative_to(ROOT).as_posix() for folder in ("launcher", "ftcore") for path in (ROOT / folder).rglob("*.py")]
    assert not [name for name in (*modules, *DATA) if not (unpacked / name).is_file()]
    assert not (unpacked / "tests").exists()
    (record,) = unpacked.glob("ftlaunch-*.dist-info")
    assert "ftlaunch = launcher.cli:main" in (record / "entry_points.txt").read_text()


def test_the_embedded_default_is_found_in_it(unpacked: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    command = [sys.executable, "-P", "-m", "launcher.cli", "validate"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("OK the embedded default")
