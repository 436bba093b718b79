"""What a launch asks of the ledger before it takes anything: refuse what can't fit, warn of what hardly does, and never stand in the way otherwise."""

from __future__ import annotations

from pathlib import Path

from ftcore.spec.errors import FtError, Problem, SpecError
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import ModelSection
from launcher.memory.capacity import Capacity, HostFacts, capacity_of, planned_elsewhere
from launcher.memory.config_file import PACKAGE, cached_config, find_config, read_config
from launcher.memory.fit import require_fit, shortages
from launcher.memory.ledger import build_ledger
from launcher.memory.shape import ModelShape, read_shape


def check_launch(
    resolved: ResolvedSpec,
    *,
    folder: Path | None = None,
    facts: HostFacts | None = None,
    refuses: bool = True,
    elsewhere: bool = False,
    goes_on: bool = False,
) -> list[str]:
    """What to warn of before ranks of `resolved` are started, with a run folder in `folder` (None: its disk is not judged).

    `facts` are what preflight heard of the hosts; `elsewhere`: the ranks will run on machines that nothing is known of but what spec.hardware
    says; `goes_on`: the run was begun, and only what a resume may change is proposed.
    Raises DoesNotFitError when it can't fit, with the best option that does; a warning instead unless it `refuses`. A model or a machine that
    can't be planned for is a warning as well.
    """
    try:
        shape = shape_at_hand(resolved.spec.model)
        capacity = planned_elsewhere(resolved) if elsewhere else capacity_of(resolved, folder=folder, facts=facts)
        ledger = build_ledger(resolved, shape, on_cpu=capacity.is_shared)
        found = shortages(resolved, ledger, capacity)
        short = any(each.is_error and each.place != "disk" for each in found)
        advice = _best_option(resolved, shape, capacity, goes_on=goes_on) if short and refuses else ""
    except FtError as error:
        return [f"whether it fits in memory was not checked: {error.problems[0].what}"]
    except Exception as error:  # noqa: BLE001  an odd model must not keep a run from starting
        return [f"whether it fits in memory was not checked: {type(error).__name__}: {str(error)[:200]}"]
    if not refuses:
        return [f"{'it does not fit: ' if each.is_error else ''}{each.what}" for each in found]
    return require_fit(resolved, ledger, capacity, advice)


def shape_at_hand(model: ModelSection) -> ModelShape:
    """The model's sizes from files of this machine: a launch asks no hub, which its preparation will. Raises SpecError where there are none."""
    name = model.model_name_or_path
    if name.startswith((PACKAGE, "builtin:")) or Path(name).expanduser().exists():
        return read_shape(find_config(model))
    cached = cached_config(name, model.revision)
    if cached is None:
        raise SpecError(f"{name} is not on this machine yet", where="model.model_name_or_path", fix="ftlaunch plan fetches its config.json")
    return read_shape(read_config(cached))


def _best_option(resolved: ResolvedSpec, shape: ModelShape, capacity: Capacity, *, goes_on: bool) -> str:
    """The best way that fits, as a fix; empty where the accelerator is not known."""
    # A launch that fits is not kept waiting for these.
    from launcher.memory.choices import as_options
    from launcher.memory.cost_text import rough_time
    from launcher.memory.recommend import recommend
    from launcher.resuming import FREE_KEYS

    def check(changes: dict[str, str]) -> list[Problem]:
        return [Problem(what=f"{key} can't change when a run goes on") for key in changes if goes_on and key not in FREE_KEYS]

    try:
        found = recommend(resolved, shape, capacity, check=check)
    except SpecError:
        return ""
    if not found.options:
        return "nothing that `ftlaunch plan --recommend` weighs fits: use accelerators with more memory, more of them, or a smaller model"
    best = found.options[0]
    return f"{as_options(best.changes)} fits ({best.choice.label}; {rough_time(best.forecast.total_s)}); ftlaunch plan --recommend lists more"
