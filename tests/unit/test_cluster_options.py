"""Options of `launch` that stand for keys of the cluster section."""

from __future__ import annotations

import click
import pytest

from launcher.commands.launch import LaunchOptions, command
from launcher.verbs import cli


def test_the_command_line_has_the_options() -> None:
    as_group = {"token_normalize_func": cli.context_settings["token_normalize_func"]}
    arguments = ["--launcher", "pdsh", "--master_addr", "192.0.2.5", "--master-port=29600", "--interface", "eth1", "--max_restarts", "2", "--elastic"]
    expected = {"launcher": "pdsh", "master_addr": "192.0.2.5", "master_port": 29600, "interface": "eth1", "max_restarts": 2, "elastic": True}
    given = LaunchOptions(**command.make_context("launch", arguments, **as_group).params)
    assert {key: getattr(given, key) for key in expected} == expected
    with pytest.raises(click.BadParameter, match="'srun' is not one of"):
        command.make_context("launch", ["--launcher", "srun"])
