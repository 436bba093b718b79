"""Buffers that are fp32 while everything else computes in bf16, and patterns that match none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ftcore import dist
from ftcore.base_check import check_base
from ftcore.data.prepared import ModelSource
from ftcore.engine import Engine, join_process_group
from ftcore.model.build import attach_method
from ftcore.model.groups import parameter_groups
from ftcore.model.kept_buffers import check_kept_buffers
from ftcore.model.load import load_base
from ftcore.spec.errors import SpecError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import Spec
from tests.ranks.jobs import make_run
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section

Small = tuple[ModelSource, str]


def buffer_types(rank: int, world_size: int, folder: str, specs: dict[str, Spec], source: ModelSource) -> dict[str, dict[str, torch.dtype]]:
    """Spec -> type of each buffer in its engine; two that the base holds in bf16 are beside its own, which are fp32."""
    ranks = dist.start()
    join_process_group(ranks)
    found = {}
    for name, spec in specs.items():
        run_dir = RunDir(Path(folder) / name.replace(" ", "_"))
        if ranks.is_first:
            make_run(run_dir.path, spec, world_size)
        dist.barrier()
        base = load_base(spec.model, source)
        for buffer in ("router_bias", "router_scale"):
            base.register_buffer(buffer, torch.ones(3, dtype=torch.bfloat16))
        model = attach_method(base, spec.method, spec.train)
        engine = Engine(model, parameter_groups(model, spec), run_dir.ds_config, ranks)
        found[name] = {key.rsplit(".", 1)[-1]: buffer.dtype for key, buffer in engine.module.named_buffers()}
        engine.deepspeed.destroy()
    dist.barrier()
    dist.stop()
    return found


def test_a_buffer_that_matches_becomes_fp32(pool: RankPool, small: Small, tmp_path: Path) -> None:
    """Also under an adapter, where PEFT has put its names before the buffer's."""
    specs = {
        f"{method} {stage}": with_section(make_spec(stage, method=method, precision="bf16"), "train", keep_in_fp32=("router_b*s",))
        for method, stage in (("full", 1), ("full", 3), ("lora", 2))
    }
    types = pool.run(buffer_types, 1, str(tmp_path), specs, small[0], logs=tmp_path / "logs")[0]
    fp32, bf16 = torch.float32, torch.bfloat16
    for name, by_buffer in types.items():
        assert by_buffer == {"inv_freq": fp32, "original_inv_freq": fp32, "router_bias": fp32, "router_scale": bf16}, name


def test_a_pattern_that_matches_nothing(small: Small, tmp_path: Path) -> None:
    """All at once, before any rank starts."""
    spec = make_spec(1, precision="bf16")
    wrong = replace(spec, train=replace(spec.train, keep_in_fp32=("inv_freq", "invfreq", "norm", "(")))
    with pytest.raises(SpecError) as caught:
        check_base(wrong, small[0], tmp_path)
    said = [problem.what for problem in caught.value.problems]
    assert len(said) == 3 and {problem.where for problem in caught.value.problems} == {"train.keep_in_fp32"}
    assert said[0].startswith("'invfreq' matches no buffer of LlamaForCausalLM; its buffers are model.rotary_emb.inv_freq, ")
    assert "a parameter of that name has an fp32 master anyway" in said[1] and "'(' is no pattern" in said[2]
    with pytest.raises(SpecError, match="Linear has no floating-point buffer"):
        check_kept_buffers(torch.nn.Linear(2, 2), ("a",))
