"""ZeRO-3 with whole decoder layers gathered at once: full training takes them, with and without recomputing, and anything frozen does not."""

from __future__ import annotations

import pytest
from deepspeed.utils import z3_leaf_module

from ftcore.data.prepared import ModelSource
from ftcore.engine_leaves import gather_whole_layers
from ftcore.model.build import attach_method
from ftcore.model.groups import freeze_matching
from ftcore.model.load import load_base
from ftcore.spec.sections import MethodSection, OptimizerSection, ParameterGroup, TrainSection
from tests.ranks.specs import make_spec

Small = tuple[ModelSource, str]
FREEZE_EMBEDDING = OptimizerSection(parameter_groups=(ParameterGroup(pattern="*embed_tokens*", freeze=True),))


@pytest.mark.parametrize(
    ("method", "optimizer", "marked"),
    [(MethodSection(), OptimizerSection(), 2), (MethodSection(), FREEZE_EMBEDDING, 0), (MethodSection(type="lora"), OptimizerSection(), 0)],
)
def test_which_layers_are_gathered_whole(method: MethodSection, optimizer: OptimizerSection, marked: int, small: Small) -> None:
    model = attach_method(load_base(make_spec(3).model, small[0]), method, TrainSection(precision="fp32"))
    freeze_matching(model, optimizer)
    assert gather_whole_layers(model) == marked
    assert sum(z3_leaf_module(module) for module in model.modules()) == marked
