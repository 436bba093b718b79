"""Rules between the keys of `cluster` and `cluster.scheduler`: where ranks meet, what reaches them, what follows a failure, what sbatch is told."""

from __future__ import annotations

import re

from ftcore.spec.errors import Problem, SpecError
from ftcore.spec.sections import Spec
from launcher.environment import SET_BY_LAUNCHER
from launcher.forwarding import is_pattern
from launcher.host_words import check_host_name, check_interface
from launcher.rules.rule import Findings, Rule
from launcher.slurm_time import NO_LIMIT, parse_slurm_time
from launcher.spec_source import Draft
from launcher.ssh_options import wrong_ssh_options
from launcher.variable_names import NAME, PER_HOST, refusal

_SLOTS = "cluster.scheduler.nodes and cluster.scheduler.slots_per_node"
_NOBODY_ELSE = "remove it: jobs belong to the user who submits them"
_SBATCH_KEYS = {
    **dict.fromkeys(("nodes", "ntasks", "ntasks-per-node", "tasks-per-node", "gpus", "gpus-per-node"), _SLOTS),
    **{name: f"cluster.scheduler.{name}" for name in ("time", "partition", "account", "qos", "constraint")},
    "signal": "cluster.scheduler.signal and cluster.scheduler.signal_lead",
    "requeue": "cluster.scheduler.max_requeues",
    "no-requeue": "cluster.scheduler.max_requeues: 0",
    "array": "`ftlaunch submit --array`",
    "dependency": "`ftlaunch submit --chain`",
    "export": "cluster.forward_env",
    "export-file": "--env-file",
    "job-name": "-o, the folder of the run, which names the job as well",
}
"""Option of sbatch -> what stands for it here."""
_SBATCH_FIXES = {
    **{name: f"use {key}" for name, key in _SBATCH_KEYS.items()},
    **dict.fromkeys(("chdir", "error", "input", "open-mode", "output"), "remove it"),
    **dict.fromkeys(("parsable", "quiet", "verbose", "test-only", "wait", "wrap", "help", "usage", "version"), "remove it"),
    **dict.fromkeys(("uid", "gid", "get-user-env"), _NOBODY_ELSE),
}
"""Every option of sbatch that is ours -> what to do: also those that the script has a value of its own for, or that change how sbatch answers."""
_SBATCH_ARG = re.compile(r"--([a-z][a-z0-9-]*)(=[A-Za-z0-9_.,:/@%+=()\[\]|&*~-]+)?")
_NAMES = {
    "partition": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(,[A-Za-z0-9_][A-Za-z0-9_.-]*)*"), "letters, digits, `_`, `-` and `.`, with commas between several"),
    "account": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+/-]*"), "letters, digits and `_.@+/-`"),
    "qos": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+/-]*"), "letters, digits and `_.@+/-`"),
    "constraint": (re.compile(r"[A-Za-z0-9_\[(][A-Za-z0-9_.,:&|*()\[\]=-]*"), "features joined by `&`, `|`, with `*N` and brackets, without blanks"),
}
"""Key of cluster.scheduler -> what it may hold: nothing that ends a line of the job's script or begins another word there."""


def _meeting_place(spec: Spec, draft: Draft) -> Findings:
    cluster = spec.cluster
    wrong = check_host_name(cluster.master_addr) if cluster.master_addr else None
    if wrong is not None:
        # What is said of a hostfile's line is not all right here.
        fix = "give an IP address, or a name that every host resolves; the port is cluster.master_port"
        yield Problem(what=wrong[0], where="cluster.master_addr", fix=fix)
    wrong = check_interface(cluster.interface) if cluster.interface else None
    if wrong is not None:
        yield Problem(what=wrong[0], where="cluster.interface", fix=wrong[1])


def _environment(spec: Spec, draft: Draft) -> Findings:
    for name, value in spec.cluster.environment.items():
        where = f"cluster.environment.{name}"
        refused = refusal(name, value)
        if not NAME.fullmatch(name):
            yield Problem(what=f"'{name}' is no name of a variable", where=where, fix="use letters, digits and '_'")
        elif refused is not None:
            yield Problem(what=f"{name} {refused[0]}", where=where, fix=refused[1])
        elif name in PER_HOST:
            fix = f"write `env.{name}=...` behind the host's slots in the hostfile, or choose slots with --include"
            yield Problem(what=f"{name} numbers one host's own devices, and this is for all hosts", where=where, fix=fix)


def _forward_env(spec: Spec, draft: Draft) -> Findings:
    for pattern in spec.cluster.forward_env:
        if not is_pattern(pattern):
            yield Problem(what=f"'{pattern}' is no name of a variable", where="cluster.forward_env", fix="write NAME, or NAME_* for all that begin so")
        elif pattern in SET_BY_LAUNCHER:
            yield Problem(what=f"{pattern} is set by ftlaunch for each rank", where="cluster.forward_env", fix="remove it")


def _ssh_options(spec: Spec, draft: Draft) -> Findings:
    for what, fix in wrong_ssh_options(spec.cluster.ssh_options):
        yield Problem(what=what, where="cluster.ssh_options", fix=fix)


def _restarts(spec: Spec, draft: Draft) -> Findings:
    if spec.cluster.elastic and spec.cluster.max_restarts == 0:
        what = "elastic says how a run is restarted, but max_restarts is 0: it never is"
        yield Problem(what=what, where="cluster.elastic", fix="give cluster.max_restarts (--max-restarts) 1 or more, or remove elastic")


def _grace(spec: Spec, draft: Draft) -> Findings:
    grace, lead = spec.cluster.preempt_grace, spec.cluster.scheduler.signal_lead
    if grace < lead:
        what = f"the scheduler leaves {lead} s for the last save (scheduler.signal_lead), but ranks are ended after {grace:g} s (preempt_grace)"
        key = "cluster.preempt_grace" if draft.given("cluster.preempt_grace") else "cluster.scheduler.signal_lead"
        yield Problem(what=what, where=key, fix=f"give preempt_grace {lead} or more, or signal_lead {int(grace)} or less")


def _time(spec: Spec, draft: Draft) -> Findings:
    text, lead = spec.cluster.scheduler.time, spec.cluster.scheduler.signal_lead
    if not text:
        return
    try:
        seconds = parse_slurm_time(text)
    except SpecError as error:
        yield from error.problems
        return
    if seconds != NO_LIMIT and lead >= seconds:
        what = f"the warning comes {lead} s before the end (signal_lead), and the time limit is {seconds} s"
        yield Problem(what=what, where="cluster.scheduler.time", fix=f"give more than {lead}s, or a shorter signal_lead")


def _names(spec: Spec, draft: Draft) -> Findings:
    for name, (form, told) in _NAMES.items():
        text = getattr(spec.cluster.scheduler, name)
        if text and not form.fullmatch(text):
            yield Problem(what=f"{text!a} can't be a {name} of Slurm", where=f"cluster.scheduler.{name}", fix=f"use {told}")


def _sbatch_args(spec: Spec, draft: Draft) -> Findings:
    where = "cluster.scheduler.sbatch_args"
    seen: set[str] = set()
    for argument in spec.cluster.scheduler.sbatch_args:
        matched = _SBATCH_ARG.fullmatch(argument)
        if matched is None:
            fix = "write the long option, --name=value, without blanks, quotes, `#` and `$`"
            yield Problem(what=f"{argument!a} is no option that can stand in a job's script", where=where, fix=fix)
            continue
        name = matched[1]
        # sbatch takes the beginning of an option's name for the option.
        ours = next((known for known in sorted(_SBATCH_FIXES, key=len) if known.startswith(name)), "")
        if ours:
            yield Problem(what=f"--{name} is ftlaunch's own to set", where=where, fix=_SBATCH_FIXES[ours])
        elif name in seen:
            yield Problem(what=f"--{name} is given twice", where=where, fix="keep one of them")
        seen.add(name)


_S = "cluster.scheduler"
CLUSTER_RULES = (
    Rule(("cluster.master_addr", "cluster.interface"), _meeting_place),
    Rule(("cluster.environment",), _environment),
    Rule(("cluster.forward_env",), _forward_env),
    Rule(("cluster.ssh_options",), _ssh_options),
    Rule(("cluster.elastic", "cluster.max_restarts"), _restarts),
    Rule(("cluster.preempt_grace", "cluster.scheduler.signal_lead"), _grace),
    Rule((f"{_S}.time", f"{_S}.signal_lead"), _time),
    Rule(tuple(f"{_S}.{name}" for name in _NAMES), _names),
    Rule((f"{_S}.sbatch_args",), _sbatch_args),
)
