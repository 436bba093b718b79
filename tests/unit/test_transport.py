"""The argv that reaches a host by ssh."""

from __future__ import annotations

import pytest

from ftcore.spec.errors import SpecError
from ftcore.spec.resolved import Host
from launcher.transport import SshOptions, ssh_argv

OURS = ("-oBatchMode=yes", "-oConnectTimeout=8", "-oForwardX11=no")


# A14: a port takes no option of the user's away, from the environment or from the spec.
def test_a_port_and_all_options_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTLAUNCH_SSH_ARGS", "-F '/my cfg' -oControlPath=/x/%h")
    argv = ssh_argv(Host(name="beta", slots=1, port=2222, user="me"), "echo $A 'b c'", SshOptions(options=("-i", "/key", "-oCompression=yes")))
    users = ("-F", "/my cfg", "-oControlPath=/x/%h", "-i", "/key", "-oCompression=yes")
    assert argv == ("ssh", "-T", "-p", "2222", *users, *OURS, "--", "me@beta", "echo $A 'b c'")


# A14: and nothing has to be set.
@pytest.mark.parametrize("port", [0, 2222])
def test_no_option_of_the_user(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.delenv("FTLAUNCH_SSH_ARGS", raising=False)
    argv = ssh_argv(Host(name="-beta", slots=1, port=port), "true", SshOptions())
    assert argv == ("ssh", "-T", *(("-p", "2222") if port else ()), *OURS, "--", "-beta", "true")


def test_options_that_can_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTLAUNCH_SSH_ARGS", "-F '/my cfg")
    with pytest.raises(SpecError, match="FTLAUNCH_SSH_ARGS can't be read"):
        ssh_argv(Host(name="beta", slots=1), "true", SshOptions())
