"""Targets that exist, groups that decay, and models whose packed samples see each other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ftcore import dist
from ftcore.data.prepared import ModelSource
from ftcore.engine import Engine, join_process_group
from ftcore.model.build import attach_method
from ftcore.model.groups import parameter_groups
from ftcore.model.load import load_base
from ftcore.model.targets import check_targets
from ftcore.run import build_engine
from ftcore.spec.errors import FtError, SpecError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import MethodSection, ModelSection, TrainSection
from ftcore.train.isolation import require_isolated_samples
from tests.ranks.jobs import make_job, make_run
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec

Small = tuple[ModelSource, str]


def load(small: Small) -> torch.nn.Module:
    return load_base(ModelSection(model_name_or_path="small", dtype="float32"), small[0])


def test_a_misspelt_target_is_named(small: Small) -> None:
    """B11: the matched target does not hide the other one."""
    base = load(small)
    assert check_targets(base, MethodSection(type="lora", target_modules=("q_proj",))) == {"q_proj": 2}
    with pytest.raises(SpecError, match=r"no module of the model is called v_porj; its linear layers are .*v_proj") as caught:
        check_targets(base, MethodSection(type="lora", target_modules=("q_proj", "v_porj")))
    assert caught.value.problems[0].where == "method.target_modules"
    with pytest.raises(SpecError, match="called embed_tokenz"):
        check_targets(base, MethodSection(type="lora", modules_to_save=("embed_tokenz",)))


@pytest.mark.parametrize(
    ("section", "names", "reason"),
    [
        ("target_modules", ("norm",), "norm is a LlamaRMSNorm, and LoRA adapts"),
        ("target_modules", ("q_proj", "mlp"), "mlp is a LlamaMLP, and LoRA adapts"),
        ("target_modules", ("layers",), "layers is a ModuleList, and LoRA adapts"),
        ("modules_to_save", ("model",), "model can't be trained whole beside adapters: LlamaModel holds the layers"),
        ("modules_to_save", ("layers",), "ModuleList holds the layers of the model"),
        ("modules_to_save", ("mlp",), "LlamaMLP is made of other layers"),
        ("modules_to_save", ("act_fn",), "has no parameters"),
    ],
)
def test_targets_of_the_wrong_type(section: str, names: tuple[str, ...], reason: str, small: Small) -> None:
    with pytest.raises(SpecError, match=reason) as caught:
        attach_method(load(small), MethodSection(type="lora", **{section: names}), TrainSection())
    assert caught.value.problems[0].where == f"method.{section}"


def test_what_peft_refuses_is_no_bug(small: Small) -> None:
    """A layer trained whole gets no adapter, so none is left to adapt."""
    method = MethodSection(type="lora", target_modules=("lm_head",), modules_to_save=("lm_head",))
    with pytest.raises(SpecError, match="PEFT can't adapt this model"):
        attach_method(load(small), method, TrainSection())


@pytest.mark.parametrize(
    "method", [MethodSection(type="lora", modules_to_save=("norm", "embed_tokens")), MethodSection(type="lora", target_modules=("embed_tokens",))]
)
def test_targets_of_the_right_type(method: MethodSection, small: Small) -> None:
    assert attach_method(load(small), method, TrainSection())


def change_weights(small: Small, folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> ModelSource:
    """A copy of the small model with `change` made to its weights."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(small[0].path, folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return replace(small[0], path=str(folder), name="changed")


UP = "model.layers.1.mlp.up_proj.weight"


def test_weights_that_do_not_fit_are_not_trained(small: Small, tmp_path: Path) -> None:
    """transformers alone would only warn, and fill them with random values."""
    missing = change_weights(small, tmp_path / "missing", lambda weights: weights.pop(UP))
    wrong = change_weights(small, tmp_path / "wrong", lambda weights: weights.update({UP: torch.zeros(3, 4)}))
    with pytest.raises(SpecError, match=f"changed is not whole: the weight files lack {UP}"):
        load((missing, ""))
    with pytest.raises(SpecError, match=rf"{UP} \(3x4 in the file, 48x32 in the model\)"):
        load((wrong, ""))


def load_partitioned(rank: int, world_size: int, folder: str, source: ModelSource) -> str:
    ranks = dist.start()
    run_dir = make_run(Path(folder), make_spec(3), world_size)
    try:
        build_engine(make_job(run_dir, make_spec(3), source, source.path + "/../samples.arrow"), ranks)
    except SpecError as error:
        return str(error)
    return ""


def test_a_missing_weight_in_stage_3(small: Small, pool: RankPool, tmp_path: Path) -> None:
    source = change_weights(small, tmp_path / "missing", lambda weights: weights.pop(UP))
    shutil.copy(small[1], tmp_path / "samples.arrow")
    for message in pool.run(load_partitioned, 1, str(tmp_path / "run"), source, logs=tmp_path / "logs"):
        assert f"the weight files lack {UP}" in message


def test_lora_trains_adapters_in_the_compute_type(small: Small) -> None:
    model = attach_method(load(small), MethodSection(type="lora", r=4), TrainSection(precision="bf16"))
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert len(trained) == 2 * 7 * 2 and {parameter.dtype for _, parameter in trained} == {torch.bfloat16}


def test_same_seed_same_adapter(small: Small) -> None:
    one, two = (attach_method(load(small), MethodSection(type="lora", r=4), TrainSection(seed=7)).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_vectors_are_not_decayed(small: Small) -> None:
    groups = parameter_groups(load(small), make_spec(0))
    assert [(group["weight_decay"], {parameter.dim() for parameter in group["params"]}) for group in groups] == [(0.1, {2}), (0.0, {1})]


def test_checkpointing_gives_the_same_gradients(small: Small) -> None:
    from ftcore.batch.collate import collate
    from ftcore.data.cache import SampleSet
    from ftcore.train.loss import token_loss_sum

    batch = collate([SampleSet.open(small[1]).sample(index) for index in range(4)])
    gradients = []
    for checkpointing in ("none", "full", "every:2", "sqrt"):
        model = attach_method(load(small), MethodSection(), TrainSection(gradient_checkpointing=checkpointing)).train()
        token_loss_sum(model, batch).backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert all(torch.equal(gradients[0][name], other[name]) for other in gradients[1:] for name in gradients[0])


class Leaky(torch.nn.Module):
    """Logits from a running mean over the whole row: samples are not kept apart."""

    def __init__(self, fill: float | None = None) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(64, 16)
        if fill is not None:
            torch.nn.init.constant_(self.table.weight, fill)
        self.config = SimpleNamespace(_attn_implementation="none")

    def forward(self, input_ids: torch.Tensor, logits_to_keep: torch.Tensor, **_: object) -> SimpleNamespace:
        return SimpleNamespace(logits=self.table(input_ids).cumsum(dim=1)[:, logits_to_keep])


def probe_leaky(rank: int, world_size: int, folder: str, fill: float | None = None) -> str:
    ranks = dist.start()
    run_dir = make_run(Path(folder), make_spec(2), world_size) if rank == 0 else RunDir(Path(folder))
    dist.barrier()
    join_process_group(ranks)
    model = Leaky(fill)
    engine = Engine(model, parameter_groups(model, make_spec(2)), run_dir.ds_config, ranks)
    try:
        require_isolated_samples(engine)
    except FtError as error:
        return str(error)
    return ""


def test_a_model_that_leaks_is_refused(pool: RankPool, tmp_path: Path) -> None:
    for message in pool.run(probe_leaky, 2, str(tmp_path / "run"), logs=tmp_path / "logs"):
        assert "Leaky lets samples of one micro-step see each other" in message


def test_weights_that_are_not_finite_are_called_so(pool: RankPool, tmp_path: Path) -> None:
    for message in pool.run(probe_leaky, 1, str(tmp_path / "run"), float("nan"), logs=tmp_path / "logs"):
        assert "the base model's logits are not finite" in message and "see each other" not in message


def engine_config(rank: int, world_size: int, folder: str, stage: int, small: Small) -> tuple[dict[str, object], bool]:
    """What DeepSpeed holds as its configuration, and whether the base was partitioned while it was loaded."""
    ranks = dist.start()
    spec = make_spec(stage)
    run_dir = make_run(Path(folder), spec, world_size) if rank == 0 else RunDir(Path(folder))
    dist.barrier()
    engine = build_engine(make_job(run_dir, spec, *small), ranks)
    return engine.deepspeed.config, all(hasattr(parameter, "ds_id") for parameter in engine.module.parameters())


@pytest.mark.parametrize("stage", [2, 3])
def test_the_engine_gets_the_file_of_the_run_folder(stage: int, small: Small, pool: RankPool, tmp_path: Path) -> None:
    written = tmp_path / "run" / "ds_config.json"
    for config, partitioned in pool.run(engine_config, 2, str(tmp_path / "run"), stage, small, logs=tmp_path / "logs"):
        assert config == json.loads(written.read_text())
        assert partitioned is (stage == 3)
