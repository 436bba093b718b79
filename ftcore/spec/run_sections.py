"""Sections of a spec: what a run saves, measures and writes down, and the hardware it is planned for. `None`s mean what they mean in ftcore.spec.sections."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSection:
    """What is saved, and how much of it is kept."""

    save_steps: int = 0
    """Updates between checkpoints; 0 saves at the end only."""
    save_total_limit: int = 2
    """Newest checkpoints kept."""
    metric_for_best_model: str = ""
    """`loss` (of the first evaluation set) or `NAME/loss`: the checkpoint with the lowest one is kept and called best. Empty: none."""
    save_async: bool = True
    """Write while training goes on; false waits until a checkpoint is whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSection:
    """When and how the model is measured on held-out rows."""

    eval_steps: int = 0
    """Updates between evaluations; 0 evaluates at the end only."""
    eval_on_start: bool = True
    """Evaluate before the first update."""
    metrics: tuple[str, ...] = ()
    """What `ftlaunch evaluate` scores generated answers by: exact_match, valid_json, regex, rouge_l."""
    regex: str = ""
    """What the whole answer must match (metric regex)."""
    max_new_tokens: int = 256
    """Longest generated answer."""
    max_rows: int = 200
    """Rows of each set that answers are generated for, its first ones."""
    early_stopping_patience: int = 0
    """Evaluations in a row without a better checkpoint.metric_for_best_model after which the run ends; 0: never."""
    early_stopping_threshold: float = 0.0
    """How much lower the metric must be to count as better for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSection:
    """What is written down while training."""

    logging_steps: int = 1
    """Updates between lines of metrics.jsonl."""
    log_samples: bool = False
    """Write the ids of each update's samples to metrics/rank_R.jsonl."""
    layer_grad_norm_steps: int = 0
    """Updates between lines with each layer's gradient norm; 0: never."""
    phases: bool = True
    """Measure where each rank's time goes, and which rank the others wait for."""
    report_to: tuple[str, ...] = ()
    """Where the numbers of metrics.jsonl go as well: tensorboard (RUN/tensorboard), wandb."""
    run_name: str = ""
    """The run's name in wandb; empty: the run folder's."""
    wandb_project: str = ""
    """Empty: WANDB_PROJECT, else ftlaunch."""
    wandb_entity: str = ""
    """Empty: WANDB_ENTITY, else that of the login."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingSection:
    """What torch's profiler records."""

    updates: int = 0
    """Updates whose calls and kernels are recorded with torch's profiler; 0: none."""
    start_update: int = 3
    """The first of them, counted from 1."""
    ranks: tuple[int, ...] = (0,)
    """Ranks that record."""
    memory: bool = False
    """Record allocations as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSection:
    """What `ftlaunch plan` counts with; nothing here changes what is computed."""

    accelerator: str = ""
    """A name that `ftlaunch plan --gpu` knows, or NAME:GiB; empty: what this machine has."""
    memory: int | None = None
    """Bytes of one accelerator, over those of its name; None: those of its name."""
    host_memory: int | None = None
    """Bytes of one host's memory; None: this machine's when the run is on it alone, else unknown."""
    price_per_hour: float | None = None
    """Price of one accelerator for an hour; None: not counted."""
    spot_price_per_hour: float | None = None
    """The same where the host may be taken away at any time; None: not offered."""
    interruptions_per_day: float | None = None
    """How often a spot host is taken away; None: not known."""
    currency: str = "USD"
    """Unit of the prices."""
    intra_node_bandwidth: float | None = None
    """Between the accelerators of a host, GB/s (10^9 bytes) a rank; None: that of the accelerator's link."""
    inter_node_bandwidth: float | None = None
    """Between hosts, GB/s a host; None: not known."""
    nvme_bandwidth: float | None = None
    """Of the local NVMe, GB/s a host; None: not known."""
    margin: float = 0.1
    """Share of an accelerator's memory that a plan leaves free."""
