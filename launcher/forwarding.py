"""Which variables of the launching shell reach the ranks on other hosts, and what each host's ranks get. Pure functions; values are never shown.

ssh hands over nothing by itself, and everything would be wrong: PATH, HOME, DISPLAY, a scheduler's or another launch's variables belong to one host.
So what is forwarded is a stated list, what the user names, and everything in --env-file.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ftcore.spec.cluster import ClusterSection
from ftcore.spec.resolved import Host
from launcher.environment import SET_BY_LAUNCHER
from launcher.variable_names import LATE, PER_HOST, is_secret

PREFIXES = {
    "NCCL_": "how the ranks of several hosts reach each other",
    "GLOO_": "the same, on CPUs",
    "UCX_": "the same, through UCX",
    "FI_": "the same, through libfabric (EFA)",
    "TORCH_": "torch's own settings; TORCHELASTIC_ would be those of another launch",
    "TORCHINDUCTOR_": "torch's compiler",
    "TORCHDYNAMO_": "torch's compiler",
    "PYTORCH_": "torch's allocators",
    "CUDA_": "CUDA's own settings",
    "CUBLAS_": "reproducible matrix products need the same workspace everywhere",
    "TRITON_": "compiled kernels and their cache",
    "OMP_": "threads of a rank",
    "MKL_": "threads of a rank",
    "KMP_": "threads of a rank",
    "OPENBLAS_": "threads of a rank",
    "DS_": "DeepSpeed's accelerator and how it builds its kernels",
    "DEEPSPEED_": "DeepSpeed's own settings",
    "HF_": "where models lie, whether they may be fetched, and the token for it",
    "HUGGINGFACE_": "older names of the same",
    "TRANSFORMERS_": "offline mode and verbosity",
    "TOKENIZERS_": "threads of the tokenizer",
    "SAFETENSORS_": "how weights are read",
    "BITSANDBYTES_": "kernels of quantised bases",
    "BNB_": "kernels of quantised bases",
    "WANDB_": "the tracker: on whichever host a rank reports",
    "MLFLOW_": "the tracker",
    "COMET_": "the tracker",
    "CLEARML_": "the tracker",
    "NEPTUNE_": "the tracker",
}
"""Beginning of a name -> why such variables are forwarded."""

NAMES = {
    "FTLAUNCH_CACHE": "prepared data is looked for at one place on all hosts",
    "PYTHONPATH": "the code is the same on all hosts; what it holds is kept, and ftlaunch's own folder put before it",
    "PYTHONHASHSEED": "the same order of sets everywhere",
    "PYTHONUNBUFFERED": "as logs are wanted",
    "PYTHONWARNINGS": "as logs are wanted",
    "LD_LIBRARY_PATH": "the same python finds the same libraries",
    "XDG_CACHE_HOME": "where caches lie",
    "TRITON_CACHE_DIR": "where compiled kernels lie",
    "MAX_JOBS": "how many compilers build DeepSpeed's kernels at once",
    "CC": "the compiler for them",
    "CXX": "the compiler for them",
    "TZ": "times in logs",
    "LANG": "text in logs",
    "LC_ALL": "text in logs",
    "SSL_CERT_FILE": "a site's own certificates",
    "SSL_CERT_DIR": "a site's own certificates",
    "REQUESTS_CA_BUNDLE": "a site's own certificates",
    "CURL_CA_BUNDLE": "a site's own certificates",
    **{name: "the way to the internet" for base in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for name in (base, base.upper())},
}
"""Whole name -> why it is forwarded."""

_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarded:
    """Variables for the ranks of other hosts. Its values belong on a pipe, never into a file, an argv or a log."""

    values: dict[str, str]
    secret_names: tuple[str, ...]
    """Those whose values are secrets, in alphabetical order."""
    plain_names: tuple[str, ...]
    """The others."""

    def __repr__(self) -> str:
        """The names alone: an exception's report may show it."""
        return f"Forwarded(secret_names={self.secret_names!r}, plain_names={self.plain_names!r})"


def forwarded(base: Mapping[str, str], given: Mapping[str, str], extra: tuple[str, ...] = ()) -> Forwarded:
    """What of `base` (the launching shell's environment) the lists above and `extra` (cluster.forward_env) name, with all of `given` (--env-file) over it.

    Never a variable that each rank gets a value of its own for; one that numbers a host's devices, or says where ranks meet, only when the user names it.
    """
    values = {name: value for name, value in base.items() if _is_listed(name) or _is_named(name, extra)} | dict(given)
    values = {name: values[name] for name in sorted(values) if name not in SET_BY_LAUNCHER}
    secret = tuple(name for name, value in values.items() if is_secret(name, value))
    return Forwarded(values=values, secret_names=secret, plain_names=tuple(name for name in values if name not in secret))


def rank_variables(base: Mapping[str, str], cluster: ClusterSection, given: Mapping[str, str]) -> dict[str, str]:
    """What the ranks of any host get: of `base` what is forwarded, with cluster.environment and `given` (--env-file) over it."""
    return forwarded(base, {**cluster.environment, **given}, cluster.forward_env).values


def is_pattern(text: str) -> bool:
    """Whether `text` may stand in cluster.forward_env: a name, or the beginning of names and a `*`."""
    return _PATTERN.fullmatch(text) is not None


def host_environment(inherited: Mapping[str, str], everywhere: Mapping[str, str], given: Mapping[str, str], host: Host) -> dict[str, str]:
    """The variables of one host's ranks. The later wins: inherited, cluster.environment (`everywhere`), --env-file (`given`), the hostfile's env.NAME."""
    return {name: value for name, value in {**inherited, **everywhere, **given, **host.environment}.items() if name not in SET_BY_LAUNCHER}


def render_note(those: Forwarded) -> str:
    """A line for the terminal: which variables reach the other hosts, without their values."""
    if not those.values:
        return "environment for other hosts: nothing is set that they need"
    secrets = f"; secret, over a pipe like the others: {', '.join(those.secret_names)}" if those.secret_names else ""
    return f"environment for other hosts: {', '.join(those.plain_names) or 'no plain variable'}{secrets}"


def _is_listed(name: str) -> bool:
    return name not in PER_HOST | LATE and (name in NAMES or name.startswith(tuple(PREFIXES)))


def _is_named(name: str, patterns: Iterable[str]) -> bool:
    # A `*` is not meant for what belongs to one host.
    return any(name == pattern or (name not in PER_HOST | LATE and fnmatch.fnmatchcase(name, pattern)) for pattern in patterns)
