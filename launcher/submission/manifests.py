"""Manifests for other engines, rendered only: a Kubeflow Trainer TrainJob on an MPI runtime, and a SkyPilot task. Pure functions.

Both engines give the first node a hostfile and ssh to the others; there `ftlaunch --hosts` is the launcher, as on any ssh cluster.
"""

from __future__ import annotations

import base64
import re
import shlex
from dataclasses import dataclass
from typing import Any

import yaml

from ftcore.spec.errors import Problem, SpecError
from launcher.slurm_time import NO_LIMIT, parse_slurm_time
from launcher.submission.request import Run

MOUNT = "/ftlaunch"
"""Where the volume with run folders and caches is mounted, on every node."""
RUNTIME = "deepspeed-distributed"
"""Kubeflow Trainer's runtime with an MPI policy: sshd on every node, and a hostfile."""
MPI_HOSTFILE = "/etc/mpi/hostfile"
# Pods are new, and so are their keys: also those of a pod that takes another's place under its name.
_POD_SSH = 'export FTLAUNCH_SSH_ARGS="-oStrictHostKeyChecking=accept-new -oUserKnownHostsFile=/dev/null"\n'
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_VOLUME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_RUN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_ACCELERATOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What the engines need to know and no spec says."""

    image: str
    volume: str
    run: str
    """The run's folder below the volume."""
    accelerator: str
    """SkyPilot's name of the accelerator."""
    on_cpu: bool
    arguments: tuple[str, ...] = ()
    """Options of the launch beside the spec."""
    exports: bool = True
    """Whether the run writes RUN/model after training."""


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as such."""


def _as_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _as_text)


def render_manifest(engine: str, run: Run, container: Container) -> str:
    """The YAML of `engine`, k8s or sky. Raises SpecError with every option that is missing or wrong."""
    problems = _problems(engine, container)
    if problems:
        raise SpecError(problems)
    data = _train_job(run, container) if engine == "k8s" else _sky_task(run, container)
    head = (
        "# Rendered by ftlaunch, and never run by it: look it over. FTLAUNCH_SPEC is the spec in base64; files that it names must lie\n"
        f"# under the same paths in the container, for example below {MOUNT}. The image needs ftlaunch and sshd.\n"
    )
    return head + yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=1000)


def launch_script(hostfile: str, run: Run, container: Container) -> str:
    """Shell text for the first node: begins the run, or goes on with it where its folder is there already."""
    folder = f"{MOUNT}/{container.run}"
    hosts = ["--hosts", hostfile, *([] if container.exports else ["--no-export"])]
    return (
        "set -eu\n"
        f"run={shlex.quote(folder)}\n"
        f'if [ -e "$run/resolved.json" ]; then exec ftlaunch --resume "$run" {shlex.join(hosts)}; fi\n'
        'printf %s "$FTLAUNCH_SPEC" | base64 -d > /tmp/ftlaunch-spec.yaml\n'
        f'exec ftlaunch --spec /tmp/ftlaunch-spec.yaml -o "$run" {shlex.join([*hosts, *container.arguments])}\n'
    )


def resource_name(run: str) -> str:
    """The run's name as Kubernetes takes it: lower case, digits and `-`, from a letter on."""
    return "ft-" + (re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")[:50].rstrip("-") or "run")


def _problems(engine: str, container: Container) -> list[Problem]:
    """What is missing or odd among the options."""
    wanted = {
        "--image": (container.image, _IMAGE, "the container image with ftlaunch in it, for example ghcr.io/me/ftlaunch:1"),
        "--volume": (container.volume, _VOLUME, "the claim (k8s) or volume (sky) that all nodes mount"),
        "-o": (container.run, _RUN, f"the run's folder below {MOUNT}, for example -o runs/a"),
    }
    if engine == "sky" and not container.on_cpu:
        wanted["--accelerator"] = (container.accelerator, _ACCELERATOR, "SkyPilot's name of the accelerator, for example H100; or --cpu")
    return [
        Problem(what=f"{value!a} can't be used" if value else "it is needed here", fix=f"give {meaning}", file=option)
        for option, (value, form, meaning) in wanted.items()
        if not form.fullmatch(value)
    ]


def _environment(run: Run, container: Container) -> dict[str, str]:
    spec = base64.b64encode(run.resolution.spec_text.encode()).decode()
    cpu = {"DS_ACCELERATOR": "cpu"} if container.on_cpu else {}
    return {"FTLAUNCH_SPEC": spec, "FTLAUNCH_CACHE": f"{MOUNT}/cache", **cpu, **run.resolution.resolved.spec.cluster.environment}


def _train_job(run: Run, container: Container) -> dict[str, Any]:
    scheduler = run.scheduler
    jobs = [{"name": name, "template": {"spec": {"template": {"spec": _pod(container)}}}} for name in ("launcher", "node")]
    resources = {} if container.on_cpu else {"resourcesPerNode": {"limits": {"nvidia.com/gpu": str(scheduler.slots_per_node)}}}
    seconds = parse_slurm_time(scheduler.time) if scheduler.time else NO_LIMIT
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": resource_name(container.run)},
        "spec": {
            "runtimeRef": {"name": RUNTIME},
            "trainer": {
                "image": container.image,
                "command": ["bash", "-c", _POD_SSH + launch_script(MPI_HOSTFILE, run, container)],
                "env": [{"name": name, "value": value} for name, value in _environment(run, container).items()],
                "numNodes": scheduler.nodes,
                "numProcPerNode": scheduler.slots_per_node,
                **resources,
            },
            "runtimePatches": [{"manager": "ftlaunch", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}],
            **({} if seconds == NO_LIMIT else {"activeDeadlineSeconds": seconds}),
        },
    }


def _pod(container: Container) -> dict[str, Any]:
    """What each pod gets beside the runtime's own; a new object each time, which YAML writes out."""
    return {
        "volumes": [{"name": "ftlaunch", "persistentVolumeClaim": {"claimName": container.volume}}],
        "containers": [{"name": "node", "volumeMounts": [{"name": "ftlaunch", "mountPath": MOUNT}]}],
    }


def _sky_task(run: Run, container: Container) -> dict[str, Any]:
    scheduler = run.scheduler
    slots = scheduler.slots_per_node
    head = (
        # The first node reaches the others; they have nothing to start themselves.
        'if [ "$SKYPILOT_NODE_RANK" != 0 ]; then exit 0; fi\n'
        f'printf "%s\\n" "$SKYPILOT_NODE_IPS" | sed "s/$/ slots={slots}/" > /tmp/ftlaunch-hostfile\n'
        'export FTLAUNCH_SSH_ARGS="-i $HOME/.ssh/sky-cluster-key -oStrictHostKeyChecking=accept-new"\n'
    )
    resources: dict[str, Any] = {"image_id": f"docker:{container.image}"}
    if not container.on_cpu:
        resources["accelerators"] = f"{container.accelerator}:{slots}"
    return {
        "name": resource_name(container.run),
        "num_nodes": scheduler.nodes,
        "resources": resources,
        "volumes": {MOUNT: container.volume},
        "envs": _environment(run, container),
        "run": head + launch_script("/tmp/ftlaunch-hostfile", run, container),
    }
