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
        return ssh_argv(host, command, SshOptions(options=("-F", str(self.folder / "ssh_config"), "-oConnectTimeout=2")))


def need_sshd() -> None:
    """Skips where there is no sshd, but fails where FTLAUNCH_REQUIRE_CLUSTER is set."""
    if shutil.which(SSHD) is None or shutil.which("ssh") is None:
        (pytest.fail if os.environ.get("FTLAUNCH_REQUIRE_CLUSTER") else pytest.skip)("not installed: openssh-server")


@contextlib.contextmanager
def running_sshd(folder: Path) -> Iterator[SshServer]:
    """The server, until the context ends."""
    ports = _free_ports(4)
    for name in ("id", "other_id", "hostkey"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "sshd_config").write_text(_server_text(folder, ports))
    (folder / "ssh_config").write_text(_client_text(folder, ports))
    (folder / "empty").touch()
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen([SSHD, "-D", "-f", str(folder / "sshd_config"), "-E", str(folder / "sshd.log")], stdin=subprocess.DEVNULL)
    # It takes connections, and never says a word.
    with socket.create_server(("127.0.0.1", ports[3])):
        try:
            _wait_for(ports[0])
            yield SshServer(folder)
        finally:
            server.terminate()
            server.wait(10)


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


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in sockets]


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
