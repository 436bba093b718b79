"""Options that mean the same for every verb that starts ranks from a spec."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ftcore.spec.resolved import Host

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path)
_FILTER_FORM = "HOST[:SLOT,...][@...]"


def hosts_option() -> click.Option:
    """--hosts."""
    return click.Option(["--hosts", "--hostfile", "-H"], type=FILE, help="A hostfile: `HOST slots=N` lines. Default: this machine.")


def zero_option(meaning: str = "DeepSpeed ZeRO stage.") -> click.Option:
    """--zero."""
    return click.Option(["--zero"], type=click.IntRange(0, 3), help=meaning)


def set_option() -> click.Option:
    """--set, which may be given again."""
    return click.Option(["--set", "sets"], metavar="KEY=VALUE", multiple=True, help="Override a value of the spec.")


def filter_options() -> list[click.Option]:
    """--include and --exclude."""
    include = click.Option(["--include", "-i"], default="", metavar=_FILTER_FORM, help="Use only these hosts and slots of the hostfile.")
    exclude = click.Option(["--exclude", "-e"], default="", metavar=_FILTER_FORM, help="Use all hosts and slots of the hostfile but these.")
    return [include, exclude]


def env_file_option(processes: str = "the processes") -> click.Option:
    """--env-file, for `processes`."""
    return click.Option(["--env-file"], type=FILE, help=f"NAME=VALUE lines for the environment of {processes}.")


def warn_of_hosts(hosts: tuple[Host, ...], variables: Mapping[str, str]) -> None:
    """Tells what is odd about hosts that ranks are about to be started on. Raises ClusterError when they can't be."""
    from launcher.commands.launch import say
    from launcher.launching import Manner, check_hosts

    for warning in check_hosts(hosts, Manner(dry_run=False, exports=False, variables=variables)):
        say(f"warning: {warning}", err=True)
