"""The sections of a spec as frozen values. Field names are Hugging Face's where it has one.

A `None` means "not given" in the spec a user wrote; after `launcher.resolve` no field is None
unless its docstring says what None means.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ftcore.spec.cluster import ClusterSection
from ftcore.spec.data_sections import DataSection, DataSet, TrainingSet
from ftcore.spec.model_sections import AdapterSection, BatchSection, MethodSection, ModelSection
from ftcore.spec.run_sections import CheckpointSection, EvaluationSection, HardwareSection, LoggingSection, ProfilingSection
from ftcore.spec.training_sections import OptimizerSection, ParameterGroup, ScheduleSection, TrainSection, ZeroSection

__all__ = [
    "AdapterSection",
    "BatchSection",
    "CheckpointSection",
    "ClusterSection",
    "DataSection",
    "DataSet",
    "EvaluationSection",
    "HardwareSection",
    "LoggingSection",
    "MethodSection",
    "ModelSection",
    "OptimizerSection",
    "ParameterGroup",
    "ProfilingSection",
    "ScheduleSection",
    "Spec",
    "TrainSection",
    "TrainingSet",
    "ZeroSection",
]


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
    profiling: ProfilingSection = field(default_factory=ProfilingSection)
    hardware: HardwareSection = field(default_factory=HardwareSection)
