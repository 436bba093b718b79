"""Every form that an export has, of runs trained on two ranks: the files alone give the engine's logits, and the card tells how to load them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from ftcore import dist, export
from ftcore.batch.collate import collate
from ftcore.data.cache import SampleSet
from ftcore.data.prepared import ModelSource
from ftcore.export_verify import require_equal
from ftcore.model.adapters import activate
from ftcore.model.quantise import keep_cpu_weights_in_place
from ftcore.run import build_engine, restore
from ftcore.spec.errors import CheckpointError, SpecError
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import AdapterSection, OptimizerSection, Spec
from ftcore.train.loop import Trainer
from ftcore.train.loss import supervised_logits
from tests.ranks.jobs import make_job, make_run
from tests.ranks.pool import RankPool
from tests.ranks.specs import make_spec, with_section
from tests.ranks.test_evaluate_export import write_prepared
from tests.unit.test_cli import ftlaunch

Small = tuple[ModelSource, str]
Logits = dict[str, torch.Tensor]
"""Adapter (one without a name: empty) -> logits [K, V] of one row."""
FAST = OptimizerSection(type="adamw", learning_rate=2e-2, weight_decay=0.0, max_grad_norm=1.0)


def make(stage: int, method: str, precision: str = "fp32", **changes: Any) -> Spec:
    spec = make_spec(stage, method=method, precision=precision, updates=2, optimizer=FAST)
    spec = with_section(spec, "method", **{"lora_dropout": 0.0, **changes})
    return with_section(spec, "schedule", warmup_steps=0)


RUNS = {
    "rslora": make(2, "lora", use_rslora=True),
    "dora": make(2, "lora", use_dora=True),
    "qlora": make(2, "qlora"),
    "qlora bf16": make(3, "qlora", "bf16"),
    "several": make(2, "lora", adapters={"first": AdapterSection(r=2), "second": AdapterSection(learning_rate=5e-2)}),
    "embedding whole": make(2, "lora", modules_to_save=("embed_tokens",)),
    "head whole": make(3, "lora", modules_to_save=("lm_head",)),
    "embedding adapted": make(2, "lora", target_modules=("q_proj", "embed_tokens")),
    "head adapted": make(2, "lora", target_modules=("q_proj", "lm_head")),
    "untied": make(2, "full"),
    "untied adapted": make(2, "lora", target_modules=("q_proj", "lm_head")),
}
TIED = ("embedding whole", "head whole", "embedding adapted", "head adapted")


def train_all(rank: int, world_size: int, folder: str, sources: dict[str, ModelSource], samples: str) -> dict[str, Logits]:
    ranks = dist.start()
    found: dict[str, Logits] = {}
    for name, spec in RUNS.items():
        run = Path(folder) / name
        if rank == 0:
            make_run(run, spec, world_size)
        dist.barrier()
        job = make_job(RunDir(run), spec, sources[name], samples)
        engine = build_engine(job, ranks)
        Trainer(engine, job, restore(engine, job)).run()
        engine.eval()
        for adapter in spec.method.adapters or ("",):
            if adapter:
                activate(engine.module, adapter)
            with torch.no_grad():
                found.setdefault(name, {})[adapter] = supervised_logits(engine.deepspeed, probe(samples)).float().clone()
        engine.deepspeed.destroy()
    dist.barrier()
    dist.stop()
    return found


def probe(samples: str) -> Any:
    return collate([SampleSet.open(samples).sample(1)])


@pytest.fixture(scope="module")
def untied(small: Small, tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    """The small model with a head of its own."""
    source, folder = small[0], tmp_path_factory.mktemp("untied")
    model = AutoModelForCausalLM.from_pretrained(source.path)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().flip(0).clone())
    model.save_pretrained(folder)
    for file in Path(source.path).glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return ModelSource(path=str(folder), revision="", digest="untied", name=str(folder), trust_remote_code=False)


@pytest.fixture(scope="module")
def trained(pool: RankPool, small: Small, untied: ModelSource, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Logits], str]:
    """The folder of all runs by name, and the engines' logits."""
    folder, samples = tmp_path_factory.mktemp("forms"), small[1]
    sources = {name: untied if name.startswith("untied") else small[0] for name in RUNS}
    logits = pool.run(train_all, 2, str(folder), sources, samples, logs=folder / "logs")[0]
    for name, source in sources.items():
        write_prepared(folder / name, source, samples)
    return folder, logits, samples


Runs = tuple[Path, dict[str, Logits], str]


def exported(trained: Runs, name: str, to: Path, form: str = "auto", adapter: str = "") -> dict[str, Any]:
    """The record of an export of that run."""
    export.main(RunDir(trained[0] / name), to, form, adapter=adapter)
    record: dict[str, Any] = json.loads((to / "ftlaunch_export.json").read_text())
    return record


def load_as_the_card_says(folder: Path) -> torch.nn.Module:
    """Runs the card's code in the folder."""
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    before = Path.cwd()
    os.chdir(folder)
    try:
        exec(code, names)  # noqa: S102  what a user would paste
    finally:
        os.chdir(before)
    assert names["tokenizer"]("w3").input_ids == [3]
    model: torch.nn.Module = names["model"]
    # bitsandbytes' repacking for CPUs with AVX512-BF16 fails for layers as narrow as these.
    keep_cpu_weights_in_place(model)
    return model.eval()


def logits_of(model: torch.nn.Module, samples: str) -> torch.Tensor:
    """Logits [K, V] at the supervised positions of the row that the engines were asked about."""
    batch = probe(samples)
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=batch.input_ids_BT, logits_to_keep=batch.keep_C).logits.float()
    return logits[0] if batch.pick_K is None else logits.flatten(0, 1)[batch.pick_K]


@pytest.mark.parametrize(
    ("name", "form"), [("untied", "auto"), *((name, form) for name in ("rslora", "dora", *TIED, "untied adapted") for form in ("auto", "hf"))]
)
def test_files_alone_give_the_engines_logits(name: str, form: str, trained: Runs, tmp_path: Path) -> None:
    """C05, C06: an adapted head or embedding that was tied comes apart when merged, and the configuration says so."""
    record = exported(trained, name, tmp_path / "out", form)
    expected = trained[1][name][""]
    assert torch.allclose(logits_of(load_as_the_card_says(tmp_path / "out"), trained[2]), expected, rtol=1e-4, atol=1e-4)
    assert record["vocab_size"] == expected.shape[1] and record["update"] == 2 and record["metric"] is None
    assert record["base_digest"] == ("untied" if name.startswith("untied") else "small")
    config = tmp_path / "out" / "config.json"
    if config.exists():
        assert json.loads(config.read_text())["tie_word_embeddings"] is (name in ("rslora", "dora"))
    stored = load_file(tmp_path / "out" / ("model.safetensors" if config.exists() else "adapter_model.safetensors"))
    assert all(value.numel() for value in stored.values())


def base_of(trained: Runs, name: str) -> str:
    return str(json.loads((trained[0] / name / "prepared.json").read_text())["model"]["path"])


@pytest.mark.parametrize("name", ["qlora", "qlora bf16"])
def test_a_quantised_base(name: str, trained: Runs, tmp_path: Path) -> None:
    """The adapter is read back onto the quantised base; what quantisation did is told, and merging is into the base as it was."""
    expected = trained[1][name][""]
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if name == "qlora" else {"rtol": 0.05, "atol": 0.5}
    adapter = exported(trained, name, tmp_path / "adapter")
    assert torch.allclose(logits_of(load_as_the_card_says(tmp_path / "adapter"), trained[2]), expected, **tolerance)
    merged = exported(trained, name, tmp_path / "merged", "merged")
    assert adapter["form"] == "adapter" and merged["form"] == "merged" and merged["method"] == "qlora"
    base = AutoModelForCausalLM.from_pretrained(base_of(trained, name), dtype=getattr(torch, str(RUNS[name].model.dtype)))
    on_plain = logits_of(PeftModel.from_pretrained(base, tmp_path / "adapter").eval(), trained[2])
    assert torch.allclose(logits_of(load_as_the_card_says(tmp_path / "merged"), trained[2]), on_plain, **tolerance)
    for record, folder in ((adapter, "adapter"), (merged, "merged")):
        assert record["quantisation_logit_difference"] > 10 * record["largest_logit_difference"] or name == "qlora bf16"
        assert f"at most {record['quantisation_logit_difference']:.3g}" in (tmp_path / folder / "README.md").read_text()
    assert "quantization_config" not in json.loads((tmp_path / "merged" / "config.json").read_text())


def test_several_adapters(trained: Runs, tmp_path: Path) -> None:
    """Each in a folder that is an export of its own; one alone by name; only one is merged."""
    record = exported(trained, "several", tmp_path / "out")
    expected = trained[1]["several"]
    assert record["adapters"] == ["first", "second"] and not torch.allclose(expected["first"], expected["second"], atol=1e-2)
    together: Any = load_as_the_card_says(tmp_path / "out")
    for name in ("first", "second"):
        alone = load_as_the_card_says(tmp_path / "out" / name)
        together.set_adapter(name)
        for model in (alone, together):
            assert torch.allclose(logits_of(model, trained[2]), expected[name], rtol=1e-4, atol=1e-4)
        own = json.loads((tmp_path / "out" / name / "ftlaunch_export.json").read_text())
        assert own["adapters"] == [name] and own["base_digest"] == "small"
    exported(trained, "several", tmp_path / "out")
    exported(trained, "several", tmp_path / "one", adapter="second")
    assert torch.allclose(logits_of(load_as_the_card_says(tmp_path / "one"), trained[2]), expected["second"], rtol=1e-4, atol=1e-4)
    exported(trained, "several", tmp_path / "merged", "merged", "first")
    assert torch.allclose(logits_of(load_as_the_card_says(tmp_path / "merged"), trained[2]), expected["first"], rtol=1e-4, atol=1e-4)
    with pytest.raises(SpecError, match="the run has 2 adapters, and only one can be merged"):
        exported(trained, "several", tmp_path / "no", "hf")
    with pytest.raises(SpecError, match="the run has no adapter 'third'"):
        exported(trained, "several", tmp_path / "no", adapter="third")
    with pytest.raises(SpecError, match="no adapter 'third': its adapter has no name"):
        exported(trained, "dora", tmp_path / "no", adapter="third")


def test_the_command_line_names_the_adapters(trained: Runs, tmp_path: Path) -> None:
    ended = ftlaunch(tmp_path, "export", str(trained[0] / "several"), "--to", "out", "--adapter", "third")
    assert ended.returncode == 2 and "give one of first, second" in ended.stderr and "Traceback" not in ended.stderr
    assert not (tmp_path / "out").exists()


def rewritten(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Without the first, with another second and an empty third."""
    _, second, third, *others = sorted(tensors)
    return {second: tensors[second] + 1, third: torch.zeros(0), **{name: tensors[name] for name in others}}


@pytest.mark.parametrize(("name", "form"), [("rslora", "adapter"), ("untied", "hf")])
def test_an_export_that_lost_something_is_refused(name: str, form: str, trained: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that hold other, fewer or empty tensors than were trained: nothing is put in place."""
    function = "save_adapter" if form == "adapter" else "save_whole"
    real = getattr(export, function)

    def damaging(*arguments: Any) -> None:
        real(*arguments)
        [path] = [path for argument in arguments if isinstance(argument, Path) for path in argument.glob("*.safetensors")]
        save_file(rewritten(load_file(path)), path, metadata={"format": "pt"})

    monkeypatch.setattr(export, function, damaging)
    with pytest.raises(CheckpointError, match=r"(?s)does not load back as it was: .*\.weight"):
        exported(trained, name, tmp_path / "out", form)
    assert not list(tmp_path.iterdir())


def test_logits_that_differ_are_refused(tmp_path: Path) -> None:
    """A gap that is no number is no small one."""
    for gap in (0.02, float("nan")):
        with pytest.raises(CheckpointError, match=r"largest logit difference .*, rounding explains 0\.001"):
            require_equal(gap, torch.full((3,), 10.0), torch.float32, tmp_path)
    require_equal(0.02, torch.full((3,), 10.0), torch.bfloat16, tmp_path)
