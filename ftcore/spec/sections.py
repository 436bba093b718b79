"""The sections of a spec as frozen values. Field names are Hugging Face's where it has one.

A `None` means "not given" in the spec a user wrote; after `launcher.resolve` no field is None
unless its docstring says what None means.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ftcore.spec.cluster import ClusterSection


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSection:
    """The base model."""

    model_name_or_path: str
    """Hub id, folder, GGUF file, `package:NAME/FILE` (a file in an installed Python package) or `builtin:tiny-llama`."""
    revision: str = "main"
    """Branch, tag or commit of a hub id."""
    dtype: str | None = None
    """Type the base weights are held in: float32, bfloat16 or float16; resolved from train.precision when not given."""
    attn_implementation: str = "sdpa"
    """sdpa (one call a sample, so that samples of a row never see each other) or flash_attention_2."""
    trust_remote_code: bool = False
    """Whether code that a hub repository ships may run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSection:
    """One of several adapters that are trained on the same base; None: as the method says."""

    r: int | None = None
    """Rank of this adapter's matrices."""
    lora_alpha: float | None = None
    """Scale of this adapter."""
    learning_rate: float | None = None
    """Highest learning rate of this adapter; None: optimizer.learning_rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSection:
    """Which parameters are trained."""

    type: str = "full"
    """full, lora, or qlora (LoRA on a base whose linear layers are held in 4 or 8 bits)."""
    r: int = 16
    """Rank of the LoRA matrices."""
    lora_alpha: float = 32
    """LoRA scale; the update is multiplied by lora_alpha / r."""
    lora_dropout: float = 0.0
    """Dropout on the LoRA input, 0 <= p < 1."""
    target_modules: tuple[str, ...] = ("all-linear",)
    """Names (last parts) of the linear layers that get an adapter, or `all-linear`."""
    modules_to_save: tuple[str, ...] = ()
    """Modules trained whole beside the adapter."""
    use_rslora: bool = False
    """Scale by lora_alpha / sqrt(r) instead of lora_alpha / r."""
    use_dora: bool = False
    """Train magnitude and direction apart (DoRA)."""
    adapter_name_or_path: str = ""
    """Folder of an adapter to start from; empty: a fresh one."""
    adapters: dict[str, AdapterSection] = field(default_factory=dict)
    """Several adapters by name, each trained as if alone; empty: one."""
    bits: int = 4
    """Bits of the base's linear layers (qlora): 4 or 8."""
    quant_type: str = "nf4"
    """4-bit type (qlora): nf4 or fp4."""
    double_quant: bool = True
    """Quantise the 4-bit blocks' scales as well (qlora)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """One file of rows."""

    path: str
    """A JSONL or JSON file, or `builtin:extraction/train` and `builtin:extraction/eval`."""
    format: str = "messages"
    """messages or prompt_completion."""
    columns: dict[str, str] = field(default_factory=dict)
    """Field of the format (messages, tools; or prompt, completion, weight, tools) -> the file's own name for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSection:
    """What is trained on and evaluated on."""

    train: DataSet
    eval: DataSet | None = None
    """Held-out rows; None: only those of eval_sets, if any."""
    eval_sets: dict[str, DataSet] = field(default_factory=dict)
    """More held-out sets by name (target, hard, regression, ...), each with a loss of its own."""
    max_length: int = 1024
    """Longest sample in tokens."""
    overlong: str = "drop"
    """What happens to a longer one: error, drop or truncate_right."""

    @property
    def held_out(self) -> dict[str, DataSet]:
        """Every set to evaluate on by name; that of `eval` comes first and is called eval."""
        return ({"eval": self.eval} if self.eval is not None else {}) | self.eval_sets


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSection:
    """Size of an update and of a micro-step; exactly one of the first two is set."""

    global_batch_size: int | None = None
    """Samples in an update, over all ranks; None when tokens_per_update is used."""
    tokens_per_update: int | None = None
    """Most tokens in an update, over all ranks; None when global_batch_size is used."""
    micro_batch_tokens: int = 4096
    """Most tokens a rank computes in one micro-step."""
    layout: str = "packed"
    """packed: a micro-step is one row without padding; padded: one row a sample, for models that can't keep packed samples apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """What differs for the trained parameters that a pattern matches; None: as the optimizer section says."""

    pattern: str
    """Matched against the parameter's whole name; `*` stands for any text. The first group that matches decides."""
    learning_rate: float | None = None
    """Highest learning rate of these parameters."""
    weight_decay: float | None = None
    """For all of them, biases and norms too."""
    max_grad_norm: float | None = None
    """Clip the norm over these parameters alone to this; 0 never clips."""
    freeze: bool = False
    """Don't train them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSection:
    type: str = "adamw"
    """adamw or sgd."""
    learning_rate: float = 2e-5
    weight_decay: float = 0.0
    """Decoupled for adamw; biases and one-dimensional parameters are not decayed."""
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    momentum: float = 0.0
    """sgd only."""
    max_grad_norm: float = 1.0
    """Clip the global gradient norm to this; 0 never clips."""
    parameter_groups: tuple[ParameterGroup, ...] = ()
    """Parameters treated otherwise, by pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSection:
    lr_scheduler_type: str = "linear"
    """linear, cosine, constant or constant_with_warmup."""
    warmup_ratio: float = 0.0
    """Share of the updates over which the learning rate rises from 0."""
    warmup_steps: int | None = None
    """Updates of warm-up; given, it wins over warmup_ratio. None after resolving: the ratio decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSection:
    num_train_epochs: float | None = None
    """Passes over the training set; None when max_steps is used."""
    max_steps: int | None = None
    """Updates of the run; None when num_train_epochs is used."""
    seed: int = 42
    gradient_checkpointing: str = "none"
    """Decoder layers whose activations are recomputed in the backward pass: none, full, every:K (each K-th) or sqrt (kept once in about sqrt(layers))."""
    precision: str = "bf16"
    """fp32; bf16 or fp16 (16-bit compute, fp32 master weights; fp16 with a dynamic loss scale); or bf16_autocast (fp32 weights, bf16 matrix products)."""
    keep_in_fp32: tuple[str, ...] = ()
    """Names (parts) of buffers kept in fp32 under bf16 and fp16."""
    on_nonfinite: str = "stop"
    """What a loss or gradient that is not finite does: stop the run, or skip the update. Either way no parameter is changed."""
    max_nonfinite_updates: int = 3
    """Updates in a row that may be skipped before the run stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSection:
    stage: int = 2
    """DeepSpeed ZeRO stage 0-3."""
    offload_optimizer: str = "none"
    """none or cpu; nvme is refused, since its state can't be saved yet."""
    offload_param: str = "none"
    """none, cpu or nvme (stage 3)."""
    nvme_path: str = ""
    """Folder on local NVMe; needed by offload_param: nvme."""
    coalesce_grad_reduction: bool | None = None
    """Reduce gradients once an update instead of once a micro-step (stages 2 and 3): faster, but a rank holds its local gradients whole.
    Resolved when not given: true with lora, and in stage 2 without offload."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """DeepSpeed keys merged over the preset, as in a DeepSpeed JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSection:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSection:
    logging_steps: int = 1
    """Updates between lines of metrics.jsonl."""
    log_samples: bool = False
    """Write the ids of each update's samples to metrics/rank_R.jsonl."""
    layer_grad_norm_steps: int = 0
    """Updates between lines with each layer's gradient norm; 0: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What the user asked for, with defaults filled in."""

    model: ModelSection
    data: DataSection
    method: MethodSection = field(default_factory=MethodSection)
    batch: BatchSection = field(default_factory=BatchSection)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    train: TrainSection = field(default_factory=TrainSection)
    zero: ZeroSection = field(default_factory=ZeroSection)
    cluster: ClusterSection = field(default_factory=ClusterSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    logging: LoggingSection = field(default_factory=LoggingSection)
