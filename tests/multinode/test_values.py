"""Values reach every rank byte for byte, secrets reach nobody else, and hostile names reach no shell."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster.hosts import Cluster, need
from tests.multinode import value_launch
from tests.multinode.launches import END_LIMIT_S, LIMIT_S, LONG, Launcher

TRICKY = (
    "",
    " ",
    "two words",
    'it\'s "quoted"',
    "$HOME ${HOME} $(touch touched) `touch touched`",
    "a;touch touched|&<>*?[~]!{1,2}#\\",
    "line 1\nline 2\r\n\ttab\n",
    '{"key": ["value with \\"quotes\\"", null, 1e-5]}',
    "größe 数 🎉 \u202e\x7f",
    "--option=-x",
    "trailing\\",
)
VALUES = st.lists(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=60), max_size=20)
FEW = settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@contextlib.contextmanager
def short_lived_folder(beside: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=beside))
    yield folder
    shutil.rmtree(folder)


def arrive(cluster: Cluster, folder: Path, hosts: list[str], launcher: str, values: list[str]) -> None:
    """Asserts that all values reach the ranks on these hosts."""
    remote = hosts != ["localhost"]
    value_launch.write_given(folder, hosts, launcher, values, cluster.address(hosts[0]) if remote else "127.0.0.1")
    value_launch.launch(folder)
    assert not value_launch.differences(folder, values, len(hosts))


@pytest.fixture
def reachable(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster, for a launcher inside this process."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    return cluster


@pytest.mark.parametrize("launcher", ["ssh", "pdsh", "deepspeed"])
@pytest.mark.parametrize("hosts", [["localhost"], ["node2"], ["node1", "node2"]], ids=["here", "one host", "two hosts"])
def test_tricky_values_arrive_byte_for_byte(reachable: Cluster, tmp_path: Path, hosts: list[str], launcher: str) -> None:
    need("" if launcher == "ssh" or shutil.which("pdsh") else "not installed: pdsh")
    arrive(reachable, tmp_path, hosts, launcher, list(TRICKY))
    assert not list(tmp_path.rglob("touched"))


@pytest.mark.parametrize("hosts", [["localhost"], ["node1", "node2"]], ids=["here", "two hosts"])
def test_any_values_arrive_byte_for_byte(reachable: Cluster, tmp_path: Path, hosts: list[str]) -> None:
    @FEW
    @given(VALUES)
    def check(values: list[str]) -> None:
        with short_lived_folder(tmp_path) as folder:
            arrive(reachable, folder, hosts, "ssh", values)

    check()


def test_a_secret_is_only_where_it_belongs(launcher: Launcher) -> None:
    # A13, A19
    secret = "planted-7f3a9c51e2"
    (launcher.folder / "run.env").write_text(f"# tokens\n\nexport HF_TOKEN={secret}-file\n")
    arguments = (*LONG, "--env-file", "run.env")
    launching = launcher.start("it's a $run;", *arguments, hosts=launcher.hostfile(), environment={"WANDB_API_KEY": f"{secret}-shell"})
    shown: set[str] = set()
    began = time.monotonic()
    while len(list(launching.run_dir.attempt_logs(1).glob("rank_*.log"))) < 2 or time.monotonic() < began + 10:
        assert launching.process.poll() is None, launching.output.read_text()
        assert time.monotonic() < began + LIMIT_S
        shown |= {line for line in command_lines() if secret in line}
    launching.wait_for_update(1)
    for host in launcher.cluster.names:
        environment = Path(f"/proc/{launching.rank_pid(host)}/environ").read_bytes()
        assert f"HF_TOKEN={secret}-file\0".encode() in environment
        assert f"WANDB_API_KEY={secret}-shell".encode() in environment
    launching.process.terminate()
    assert launching.ended().status == 75
    assert not shown
    assert "HF_TOKEN" in launching.output.read_text()
    places = (launcher.folder, launcher.cache, launcher.cluster.folder)
    holding = [path for place in places for path in place.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert holding == [launcher.folder / "run.env"]


def command_lines() -> list[str]:
    """Of all processes of this machine, those on the hosts among them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().decode(errors="replace"))
    return found


@pytest.mark.parametrize("name", ["-oProxyCommand=touch${IFS}touched", "$(touch${IFS}touched)", "node1;touch${IFS}touched", "node1`touch${IFS}touched`"])
def test_hostile_names_are_refused(launcher: Launcher, name: str) -> None:
    hosts = launcher.folder / "hostfile"
    hosts.write_text(f"{name} slots=1\n")
    done = launcher.start("run", hosts=hosts).ended(END_LIMIT_S)
    assert done.status == 3
    assert str(hosts) in done.text
    assert not list(launcher.folder.rglob("touched"))
