"""How a command reaches a host: the argv of a process whose stdin, stdout and stderr are the remote command's. OpenSSH, srun and pdsh do the rest."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ftcore.spec.errors import ClusterError, SpecError
from ftcore.spec.resolved import Host
from launcher.topology import is_local

Transport = Callable[[Host, str], tuple[str, ...]]
"""A host and shell text -> argv that runs the text there."""

SSH_ARGS = "FTLAUNCH_SSH_ARGS"
"""Environment variable: more options for every ssh, as a shell would read them."""
CONNECT_TIMEOUT_S = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How the hosts of a launch are reached."""

    launcher: str
    """ssh, pdsh, deepspeed (which reaches them by itself; what else is run there goes through ssh), or srun inside a Slurm job."""
    ssh: SshOptions

    def argv(self, host: Host, command: str) -> tuple[str, ...]:
        """argv that runs the shell text `command` on `host`; srun starts steps on the job's own host too, where accelerators are bound to them."""
        if self.launcher == "srun":
            return srun_argv(host, command)
        if self.launcher == "pdsh" and not is_local(host):
            return pdsh_argv(host, command)
        return remote_argv(host, command, self.ssh)

    def is_remote(self, host: Host) -> bool:
        """Whether a network lies between, which can fail."""
        return self.launcher == "srun" or not is_local(host)

    def has_stdin(self, host: Host) -> bool:
        """Whether the command on `host` reads what is written to the process here."""
        return self.launcher not in ("pdsh", "deepspeed") or not self.is_remote(host)


@dataclass(frozen=True, slots=True, kw_only=True)
class SshOptions:
    """What the user adds to every ssh."""

    options: tuple[str, ...] = ()
    """cluster.ssh_options."""


def remote_argv(host: Host, command: str, ssh: SshOptions) -> tuple[str, ...]:
    """argv that runs the shell text `command` on `host`: by ssh, or in a shell of its own on this machine.

    Raises SpecError when $FTLAUNCH_SSH_ARGS can't be read.
    """
    return local_argv(command) if is_local(host) else ssh_argv(host, command, ssh)


def local_argv(command: str) -> tuple[str, ...]:
    """A shell on this machine."""
    return (bash(), "-c", command)


def ssh_argv(host: Host, command: str, ssh: SshOptions) -> tuple[str, ...]:
    """ssh never asks, never waits long for a connection, and never takes a host's name for an option.

    The user's options win over these, a host's own port over the user's.
    """
    port = ("-p", str(host.port)) if host.port else ()
    ours = ("-oBatchMode=yes", f"-oConnectTimeout={CONNECT_TIMEOUT_S}", "-oForwardX11=no")
    return ("ssh", "-T", *port, *_environment_options(), *ssh.options, *ours, "--", destination(host), command)


def srun_argv(host: Host, command: str) -> tuple[str, ...]:
    """A step of this Slurm job with one task on one of its nodes."""
    step = ("--nodes=1", "--ntasks=1", f"--nodelist={host.name}", "--unbuffered", "--cpu-bind=none", "--kill-on-bad-exit=0")
    return ("srun", *step, bash(), "-c", command)


def pdsh_argv(host: Host, command: str) -> tuple[str, ...]:
    """pdsh for one host. It forwards no stdin; needs the variables of `pdsh_environment`."""
    # pdsh takes what stands before a colon for a way to reach a host, and %h, %u and %n for the host's name and the like.
    target = f"{rcmd()}:{destination(host)}" if ":" in host.name else destination(host)
    return ("pdsh", "-N", "-S", "-b", "-w", target, command.replace("%", "%%"))


def pdsh_environment(ports: Iterable[int], ssh: SshOptions) -> dict[str, str]:
    """Variables that pdsh needs: how it reaches hosts where nothing says it (ssh), and ssh's options behind those of the user's own $PDSH_SSH_ARGS_APPEND.

    `ports` are ssh's (0: as ssh finds it). Raises ClusterError for options with blanks, which pdsh would take apart, and for ports that differ.
    """
    given = os.environ.get("PDSH_SSH_ARGS_APPEND", "")
    different = sorted(set(ports))
    if len(different) > 1:
        fix = "give ports in ~/.ssh/config, or use --launcher ssh"
        raise ClusterError(f"one pdsh reaches all hosts by one port of ssh; these are {', '.join(map(str, different))}", where="cluster.hosts", fix=fix)
    port = ("-p", str(different[0])) if different and different[0] else ()
    options = (*_environment_options(), *ssh.options, *port, "-oBatchMode=yes", "-oForwardX11=no")
    if broken := [option for option in options if option != "".join(option.split())]:
        fix = "put such options into ~/.ssh/config, or use --launcher ssh"
        raise ClusterError(f"pdsh would take this option of ssh apart at its blanks: {', '.join(broken)}", where="cluster.ssh_options", fix=fix)
    return {"PDSH_RCMD_TYPE": rcmd(), "PDSH_SSH_ARGS_APPEND": " ".join([*given.split(), *(option.replace("%", "%%") for option in options)])}


def rcmd() -> str:
    """How pdsh reaches hosts: as the user says ($PDSH_RCMD_TYPE), else by ssh. What pdsh itself would take, rsh, is hardly anywhere any more."""
    return os.environ.get("PDSH_RCMD_TYPE") or "ssh"


def destination(host: Host) -> str:
    """USER@HOST, or HOST alone."""
    return f"{host.user}@{host.name}" if host.user else host.name


def bash() -> str:
    """The shell for node scripts, by its full name where it lies where it usually does: PATH may be empty."""
    return next((path for path in ("/bin/bash", "/usr/bin/bash") if os.access(path, os.X_OK)), "bash")


def _environment_options() -> tuple[str, ...]:
    text = os.environ.get(SSH_ARGS, "")
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise SpecError(f"${SSH_ARGS} can't be read: {error}", where=SSH_ARGS, fix="close its quotes") from error
