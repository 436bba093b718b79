"""Hosts node1, node2, ... on this machine: each has its own network, processes, host name and sshd (tests/cluster/hosts.sh)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("hosts.sh")
TOOLS = ("bridge", "ip", "nsenter", "pgrep", "ssh", "ssh-keygen", "unshare")
SSHD = "/usr/sbin/sshd"
LIMIT_S = 180.0
"""Of one command of the script, and of whatever a test waits for here, on a machine with much to do."""


def what_is_missing(*more: str) -> str:
    """Why hosts can't be started here; empty when they can. `more` are further programs that are needed."""
    if os.geteuid() != 0:
        return "hosts in namespaces need root"
    missing = [tool for tool in (*TOOLS, SSHD, *more) if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def need(missing: str) -> None:
    """Skips the test where hosts can't be started, but fails it where FTLAUNCH_REQUIRE_CLUSTER is set."""
    if missing and os.environ.get("FTLAUNCH_REQUIRE_CLUSTER"):
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)


class Cluster:
    """Hosts from `up` to `down`. A cluster whose process has died is taken away by the next one's `up`."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.folder, self.names = folder, names

    @classmethod
    def up(cls, folder: Path, count: int = 2, *, prefix: str = "node", fabric: bool = False, alone: bool = False) -> Cluster:
        """Starts `count` hosts; `folder` receives their files. Raises RuntimeError with the script's words when that fails.

        `fabric`: eth0 is a management network, on which the hosts don't see each other, and eth1 carries traffic between them.
        `alone`: each host knows only itself by name.
        """
        cluster = cls(folder, tuple(f"{prefix}{number}" for number in range(1, count + 1)))
        names = {"PREFIX": prefix, "OWNER": str(os.getpid()), "FABRIC": "1" if fabric else "", "ALONE": "1" if alone else ""}
        try:
            cluster.script(SCRIPT, "up", str(folder), str(count), environment=names)
        except RuntimeError:
            cluster.down()
            raise
        return cluster

    def down(self) -> None:
        """Ends every process on the hosts and takes their networks away."""
        self.script(SCRIPT, "down", str(self.folder))

    @property
    def ssh_config(self) -> Path:
        """For `ssh -F`: reaches the hosts by name from this machine."""
        return self.folder / "ssh_config"

    @property
    def ssh_arguments(self) -> str:
        """The options that let ssh reach the hosts, in one text."""
        return f"-F {self.ssh_config}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that let the launcher and pdsh reach the hosts."""
        return {"FTLAUNCH_SSH_ARGS": self.ssh_arguments, "PDSH_RCMD_TYPE": "ssh", "PDSH_SSH_ARGS_APPEND": self.ssh_arguments}

    @property
    def network(self) -> int:
        """X of the hosts' addresses 10.77.X.N."""
        return int((self.folder / "network").read_text())

    def address(self, name: str, *, fabric: bool = False) -> str:
        """The host's IPv4 address."""
        return f"10.{78 if fabric else 77}.{self.network}.{self._number(name)}"

    def write_hostfile(self, path: Path, slots: int, *words: str) -> Path:
        """A hostfile of all hosts with these slots each, and `words` behind them."""
        path.write_text("".join(f"{' '.join((name, f'slots={slots}', *words))}\n" for name in self.names))
        return path

    def run(self, name: str, *command: str) -> str:
        """What a command prints that runs on the host, past sshd. Raises RuntimeError when it fails."""
        return self.script(SCRIPT, "run", str(self.folder), name, *command)

    def ssh(self, name: str, command: str, *, connect_s: int = 60) -> subprocess.CompletedProcess[str]:
        """A shell command through ssh; status 255 when the host isn't reached in `connect_s`."""
        return subprocess.run(
            ["ssh", "-F", str(self.ssh_config), f"-oConnectTimeout={connect_s}", name, command], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )

    def processes(self, name: str) -> dict[int, str]:
        """Pid as this machine counts -> command line, of all that runs on the host but its process 1 and the daemons that wait for work."""
        init = self._init(name)
        try:
            home = os.readlink(f"/proc/{init}/ns/pid")
        except OSError:
            return {}
        found = {pid: command_line(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid != init and namespace(pid) == home}
        return {pid: command for pid, command in found.items() if command and not is_daemon(command)}

    def everything(self) -> list[tuple[str, str]]:
        """(host, command line) of all that runs on any host, as of `processes`."""
        return [(name, command) for name in self.names for command in self.processes(name).values()]

    def kill_node(self, name: str) -> None:
        """SIGKILL to all that runs on the host, its sshd too; its network is gone with it. `start` brings it back."""
        os.kill(self._init(name), signal.SIGKILL)
        deadline = time.monotonic() + LIMIT_S
        while self.is_up(name):
            assert time.monotonic() < deadline, f"{name} is still there"
            time.sleep(0.01)

    def start(self, name: str) -> None:
        """A host that was killed comes back."""
        self.script(SCRIPT, "start", str(self.folder), name)

    def restart_sshd(self, name: str, *limits: str) -> None:
        """A new sshd, under limits in the words of bash's ulimit (`-v 2000000`: KiB of address space); sessions that are there stay."""
        self.script(SCRIPT, "sshd", str(self.folder), name, *limits)

    def cut(self, name: str) -> None:
        """Pulls the host's cables: packets are lost, and nobody is told."""
        self._set_links(name, "down")

    def mend(self, name: str) -> None:
        """Undoes `cut`."""
        self._set_links(name, "up")

    def hide(self, name: str, path: Path) -> None:
        """Gives the host an empty disk of its own at this folder, until the host is started anew."""
        self.run(name, "mount", "-t", "tmpfs", "tmpfs", str(path))

    def is_up(self, name: str) -> bool:
        """Whether the host is there."""
        return Path(f"/proc/{self._init(name)}").exists()

    def restore(self) -> None:
        """Hosts that were killed are back, cables are in, and nothing runs on any host."""
        for name in self.names:
            if not self.is_up(name):
                self.start(name)
            self.mend(name)
        deadline = time.monotonic() + LIMIT_S
        # What is killed takes a moment to go, and may have started something else before.
        while left := {pid: command for name in self.names for pid, command in self.processes(name).items()}:
            assert time.monotonic() < deadline, f"left on hosts: {left}"
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def _set_links(self, name: str, state: str) -> None:
        for kind in "nf":
            link = f"fv{self.network}{kind}{self._number(name)}"
            if Path("/sys/class/net", link).exists():
                subprocess.run(["ip", "link", "set", link, state], check=True, timeout=LIMIT_S)

    def _number(self, name: str) -> int:
        return self.names.index(name) + 1

    def _init(self, name: str) -> int:
        return int((self.folder / name / "init").read_text())

    def script(self, script: Path, *arguments: str, environment: dict[str, str] | None = None) -> str:
        """What a script of this folder prints. Raises RuntimeError with it when the script fails."""
        # Into a file: hosts that live on would hold a pipe open.
        with (self.folder.parent / f"{self.folder.name}.log").open("w+") as log:
            command = [str(script), *arguments]
            status = subprocess.run(
                command, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=LIMIT_S, check=False
            ).returncode
            log.seek(0)
            text = log.read()
        if status != 0:
            raise RuntimeError(f"{' '.join(command)}: exit status {status}\n{text}")
        return text


def namespace(pid: int) -> str:
    """The process namespace of a process; empty when it is gone."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""


def command_line(pid: int) -> str:
    """argv of a process with spaces between; empty when it is gone, or waits only to be reaped."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def is_daemon(command: str) -> bool:
    """Whether this belongs to the host itself: the sshd that waits for connections, or Slurm's daemons."""
    return (command.startswith("sshd:") and "[listener]" in command) or command.split(maxsplit=1)[0] in ("slurmctld", "slurmctld:", "slurmd", "munged")
