"""The section `cluster` of a spec: hosts, how they are reached, failures, and the batch scheduler. `None`s mean what they mean in ftcore.spec.sections."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSection:
    """What `ftlaunch submit` asks a batch scheduler for."""

    nodes: int | None = None
    """Hosts of the job; None: `--nodes` says it, or one."""
    slots_per_node: int | None = None
    """Ranks on each host, one an accelerator; None: `--slots-per-node` says it, or cluster.slots."""
    time: str = ""
    """Time limit, `2h30m` or as Slurm writes it (`2:30:00`; a number alone is minutes); empty: the partition's own."""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    sbatch_args: tuple[str, ...] = ()
    """More options of sbatch, each `--name=value`."""
    signal: str = "USR2"
    """Warns the run before the time limit: USR2, USR1 or TERM."""
    signal_lead: int = 120
    """Seconds before the time limit at which the warning is sent."""
    max_requeues: int = 3
    """Times a job that was preempted, or lost a host, is put back into the queue."""
    requeue_backoff: float = 30.0
    """Seconds a requeued job waits before it starts; doubled each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSection:
    """Where the ranks run, how other hosts are reached, and what follows when one fails."""

    hosts: str = ""
    """A hostfile; empty: this machine, `slots` ranks."""
    slots: int | None = None
    """Ranks on this machine when no hostfile is given; resolved from its accelerators, or 2 on CPU. None: the hostfile decides."""
    launcher: str = "ssh"
    """How other hosts are reached: ssh, pdsh or deepspeed; in a Slurm job srun, which no spec asks for."""
    master_addr: str = ""
    """Address where the ranks meet, used unchanged on every host; empty: the first host's."""
    master_port: int | None = None
    """Port where the ranks meet; None: a free one is found on the first host."""
    interface: str = ""
    """Network interface of NCCL and gloo on every host that the hostfile gives none; empty: found."""
    ssh_options: tuple[str, ...] = ()
    """More options of ssh, as its command line has them."""
    forward_env: tuple[str, ...] = ()
    """More variables of the launching shell that reach the other hosts: names, or `NAME_*`."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of every rank; no secrets, which belong in the shell's environment or --env-file."""
    heartbeat_timeout: float = 5.0
    """Seconds without a word from a host after which it counts as lost."""
    start_timeout: float = 900.0
    """Seconds from the start until every rank has begun to work, its libraries imported; 0: however long."""
    stall_timeout: float = 1800.0
    """Seconds without progress of any rank, once all have begun, after which the run is ended, with every rank's stack on record; 0: never."""
    preempt_grace: float = 600.0
    """Seconds that the last save after a preemption may take."""
    max_restarts: int = 0
    """Times a run goes on by itself after a lost host or a killed rank."""
    elastic: bool = False
    """Go on with the hosts that are left; the samples of an update stay the same."""
    scheduler: SchedulerSection = field(default_factory=SchedulerSection)
