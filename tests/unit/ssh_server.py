"""A real sshd of the tests' own on loopback, with a key of its own, and the ways in which a host can be out of reach. Needs no network namespace."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftcore.spec.resolved import Host
from launcher.transport import SshOptions, ssh_argv

SSHD = "/usr/sbin/sshd"


@dataclass(frozen=True, slots=True)
class SshServer:
    """Aliases of its ssh_config: alpha and beta are reached; the others fail as their names say."""

    folder: Path

    def argv(self, host: Host, command: str) -> tuple[str, ...]:
        """A transport: also for names that would mean this machine."""
        # The silent one is not waited for; the others answer, however busy the machine is.
        limit_s = 2 if host.name == "silent" else 60
        return ssh_argv(host, command, SshOptions(options=("-F", str(self.folder / "ssh_config"), f"-oConnectTimeout={limit_s}")))


def need_sshd() -> None:
    """Skips where there is no sshd, but fails where FTLAUNCH_REQUIRE_CLUSTER is set."""
    if shutil.which(SSHD) is None or shutil.which("ssh") is None:
        (pytest.fail if os.environ.get("FTLAUNCH_REQUIRE_CLUSTER") else pytest.skip)("not installed: openssh-server")


@contextlib.contextmanager
def running_sshd(folder: Path) -> Iterator[SshServer]:
    """The server, until the context ends."""
    for name in ("id", "other_id", "hostkey"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "empty").touch()
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    # The last one takes connections, and never says a word.
    with _kept_ports(3) as kept, socket.create_server(("127.0.0.1", 0)) as silent:
        ports = [*kept, int(silent.getsockname()[1])]
        (folder / "sshd_config").write_text(_server_text(folder, ports))
        (folder / "ssh_config").write_text(_client_text(folder, ports))
        server = subprocess.Popen([SSHD, "-D", "-f", str(folder / "sshd_config"), "-E", str(folder / "sshd.log")], stdin=subprocess.DEVNULL)
        try:
            for port in ports[:2]:
                _wait_for(port)
            yield SshServer(folder)
        finally:
            server.terminate()
            server.wait(60)


def _server_text(folder: Path, ports: list[int]) -> str:
    return (
        f"Port {ports[0]}\nPort {ports[1]}\nListenAddress 127.0.0.1\nHostKey {folder}/hostkey\nAuthorizedKeysFile {folder}/id.pub\nStrictModes no\n"
        "PermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nUseDNS no\nPrintMotd no\nPidFile none\nMaxStartups 100\n"
        f"Match LocalPort {ports[1]}\n  ForceCommand sleep 600\n"
    )


def _client_text(folder: Path, ports: list[int]) -> str:
    hosts = {
        "alpha beta": f"Port {ports[0]}",
        "hangs": f"Port {ports[1]}",
        "refuses": f"Port {ports[2]}",
        "silent": f"Port {ports[3]}",
        "stranger": f"Port {ports[0]}\n  StrictHostKeyChecking yes\n  UserKnownHostsFile {folder}/empty",
        "locked": f"Port {ports[0]}\n  IdentityFile {folder}/other_id",
        "unknown": f"Port {ports[0]}\n  HostName no-such-host.invalid",
    }
    text = "".join(f"Host {names}\n  {lines}\n" for names, lines in hosts.items())
    return text + (
        f"Host * !locked\n  IdentityFile {folder}/id\n"
        f"Host *\n  HostName 127.0.0.1\n  User {getpass.getuser()}\n  IdentitiesOnly yes\n  IdentityAgent none\n"
        "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  GlobalKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )


@contextlib.contextmanager
def _kept_ports(count: int) -> Iterator[list[int]]:
    """Ports that refuse who connects, and that the kernel gives to nobody else meanwhile: only a server that shares its address, as sshd does, takes one."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        yield [int(each.getsockname()[1]) for each in sockets]


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
