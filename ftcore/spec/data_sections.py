"""Sections of a spec: on which rows a model is trained and evaluated. `None`s mean what they mean in ftcore.spec.sections."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Rows of one kind: a file, the files of a folder or a pattern, or a data set of the hub."""

    path: str
    """A file (JSONL, JSON, CSV, parquet, Arrow; also .gz, .zst), a folder, a pattern (`data/*.jsonl`), a hub id (`OWNER/NAME`),
    `builtin:extraction/train` or `builtin:extraction/eval`."""
    format: str = "auto"
    """messages, sharegpt, alpaca, prompt_completion, text, tokenized, or auto: as the first rows look."""
    columns: dict[str, str] = field(default_factory=dict)
    """Field of the format -> the file's own name for it."""
    roles: dict[str, str] = field(default_factory=dict)
    """The file's own name of a role -> system, user, assistant, tool or function_call."""
    name: str = ""
    """Configuration of a hub data set; empty: its only or default one."""
    split: str = ""
    """Split of a hub data set or of a folder laid out like one; empty: train for training, else validation or test."""
    revision: str = ""
    """Branch, tag or commit of a hub data set; empty: main."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSet(DataSet):
    """Rows to train on, and how much of an epoch they are; without weight, samples and epochs an epoch goes through them once."""

    weight: float | None = None
    """Share of an epoch's samples, relative to the other sets'; None: by their sizes."""
    samples: int | None = None
    """Samples drawn in an epoch; None: by weight or epochs."""
    epochs: float | None = None
    """How often an epoch goes through the set; None: once, or by weight or samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSection:
    """What is trained on and evaluated on."""

    train: TrainingSet | None = None
    """Rows that are trained on; None: only those of train_sets."""
    train_sets: dict[str, TrainingSet] = field(default_factory=dict)
    """More sets to train on by name, mixed by their weight, samples or epochs."""
    eval: DataSet | None = None
    """Held-out rows; None: only those of eval_sets, if any."""
    eval_sets: dict[str, DataSet] = field(default_factory=dict)
    """More held-out sets by name (target, hard, regression, ...), each with a loss of its own."""
    max_length: int = 1024
    """Longest sample in tokens."""
    overlong: str = "drop"
    """What happens to a longer one: error, drop, truncate_right, truncate_left or split (at turns)."""
    on_bad_row: str = "error"
    """What happens to a row that can't be used: error (all are told) or drop."""
    loss_on: str = "assistant"
    """What of a conversation is learned: assistant, last_assistant, completion or all."""
    chat_template: str = ""
    """Name of a template that ships with ftlaunch, or a .jinja file; empty: the tokenizer's own."""
    num_proc: int | None = None
    """Processes that prepare rows; None: as many as pay."""
    prefetch_updates: int = 2
    """Updates whose rows are put together ahead of time; 0: none."""
    streaming: bool = False
    """Whether training rows are read while training instead of being prepared before."""
    lanes: int = 16
    """Parts that a stream is read in, each in an order of its own; the ranks share them."""
    shuffle_buffer: int = 1000
    """Rows that each lane of a stream holds to draw from."""
    repeat: bool = True
    """Whether a stream begins again at its end; else the run ends there."""

    @property
    def training(self) -> dict[str, TrainingSet]:
        """Every set to train on by name; that of `train` comes first and is called train."""
        return ({"train": self.train} if self.train is not None else {}) | self.train_sets

    @property
    def held_out(self) -> dict[str, DataSet]:
        """Every set to evaluate on by name; that of `eval` comes first and is called eval."""
        return ({"eval": self.eval} if self.eval is not None else {}) | self.eval_sets

    @property
    def training_keys(self) -> dict[str, str]:
        """Name of a set to train on -> the key that names it in a spec: data.train, data.train_sets.NAME."""
        return {name: "data.train" if each is self.train else f"data.train_sets.{name}" for name, each in self.training.items()}

    @property
    def held_out_keys(self) -> dict[str, str]:
        """Name of a held-out set -> its key: data.eval, data.eval_sets.NAME."""
        return {name: "data.eval" if each is self.eval else f"data.eval_sets.{name}" for name, each in self.held_out.items()}

    @property
    def keyed_training(self) -> dict[str, TrainingSet]:
        """The sets to train on by key."""
        return {self.training_keys[name]: each for name, each in self.training.items()}

    @property
    def all_sets(self) -> dict[str, DataSet]:
        """Every set by its key: those to train on, then the held-out ones."""
        return {**self.keyed_training, **{self.held_out_keys[name]: each for name, each in self.held_out.items()}}
