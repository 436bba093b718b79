"""Options that mean the same for every verb that starts ranks from a spec."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ftcore.spec.resolved import ResolvedSpec
    from launcher.approach import Approach
    from launcher.spec_source import Options


class NamedPath(click.Path):
    """A path that is not empty: `"$RUN"` of a shell in which RUN is not set must not mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty", param, ctx)
        return super().convert(value, param, ctx)


class _Word(click.ParamType[str]):
    """A word that is not empty, for the same reason."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "":
            self.fail("one of them is empty", param, ctx)
        return str(value)


class FiniteRange(click.FloatRange):
    """As FloatRange, which lets NaN pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{found} is no number to count with.", param, ctx)
        return found


FILE = NamedPath(path_type=Path, dir_okay=False)
FOLDER = NamedPath(path_type=Path)
_FILTER_FORM = "HOST[:SLOT,...][@...]"


def arguments(metavar: str) -> click.Argument:
    """A spec or a folder, and KEY=VALUE, as `spec_options` takes them."""
    return click.Argument(["arguments"], nargs=-1, type=_Word(), metavar=metavar)


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


def cluster_options() -> list[click.Option]:
    """How other hosts are reached, where ranks meet, and what follows when a host is lost."""
    return [
        click.Option(["--launcher"], type=click.Choice(["ssh", "pdsh", "deepspeed"]), help="How other hosts are reached. Default: ssh."),
        click.Option(["--master-addr"], metavar="HOST", help="Address where the ranks meet, used unchanged. Default: the first host's."),
        click.Option(["--master-port"], type=click.IntRange(1024, 65535), help="Its port. Default: a free one."),
        click.Option(["--interface"], metavar="NAME", help="Network interface of NCCL and gloo, the same on all hosts. Default: found on each."),
        click.Option(["--max-restarts"], type=click.IntRange(0, 1000), help="Go on by itself after a lost host or a killed rank, so many times."),
        click.Option(["--elastic"], is_flag=True, help="Go on with the hosts that are left, with the same samples in an update."),
    ]


def force_option() -> click.Option:
    """--force."""
    return click.Option(["--force"], is_flag=True, help="Go ahead although it does not fit in memory or on disk by the plan (status 7 otherwise).")


DATA_CHANGE = (
    "The run goes on with the update's number, learning rate and optimizer state of its checkpoint. The order is that of the new data, "
    "so rows may be seen again or never, and num_train_epochs counts the new data"
)
"""What --allow-data-change does, for people."""


def data_change_option() -> click.Option:
    """--allow-data-change."""
    text = f"With --resume: go on although the training data, their template or their mix changed. {DATA_CHANGE}."
    return click.Option(["--allow-data-change"], is_flag=True, help=text)


_SAME_NAME = ("hosts", "include", "exclude", "launcher", "master_addr", "master_port", "interface", "max_restarts", "elastic")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecGiven:
    """What the command line of a verb says of the spec and its hosts."""

    spec: Path | None
    hosts: Path | None
    zero: int | None
    sets: tuple[str, ...]
    include: str
    exclude: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGiven(SpecGiven):
    """What the command line of a verb that trains says of the spec, and of how it is started."""

    arguments: tuple[str, ...]
    output: Path | None
    launcher: str | None
    master_addr: str | None
    master_port: int | None
    interface: str | None
    max_restarts: int | None
    elastic: bool
    env_file: Path | None
    force: bool


def run_options(processes: str, *, folder: str, own: Sequence[click.Option] = ()) -> list[click.Parameter]:
    """The options of RunGiven but --spec, with those of the verb's `own` between; `folder` tells what --output is, `processes` whose environment it is."""
    output = click.Option(["--output", "-o"], type=FOLDER, help=folder)
    where = [hosts_option(), zero_option(), set_option(), output, *filter_options(), *cluster_options()]
    return [*where, env_file_option(processes), *own, force_option()]


def spec_options(given: Any, *, done: str) -> Options:
    """What a verb's options say about the spec: the fields of `given`, a dataclass, that are named as the options here are.

    Its `arguments` are at most one spec and any number of KEY=VALUE. Raises UsageError for a second spec, of which nothing can be `done` at the same time.
    """
    from launcher.spec_source import Options

    asked = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    specs = [Path(text) for text in asked["arguments"] if "=" not in text] + [path for path in (asked["spec"],) if path is not None]
    if len(specs) > 1:
        raise click.UsageError(f"one SPEC is {done} at a time, {len(specs)} were given: {', '.join(map(str, specs))}")
    sets = asked["sets"] + tuple(text for text in asked["arguments"] if "=" in text)
    same = {name: asked[name] for name in _SAME_NAME if name in asked}
    return Options(spec_path=specs[0] if specs else None, zero_stage=asked["zero"], sets=sets, **same)


def env_file_option(processes: str = "the processes") -> click.Option:
    """--env-file, for `processes`."""
    return click.Option(["--env-file"], type=FILE, help=f"NAME=VALUE lines for the environment of {processes}.")


def approach(resolved: ResolvedSpec, folder: Path, variables: Mapping[str, str]) -> Approach:
    """How the hosts are reached that ranks are about to be started on; tells what is odd about them. Raises ClusterError when they can't be."""
    from launcher.approach import approach_hosts
    from launcher.launching import tell
    from launcher.spec_warnings import spec_warnings

    found = approach_hosts(resolved, folder, variables=variables)
    tell(spec_warnings(resolved.spec))
    tell(found.warnings)
    return found
