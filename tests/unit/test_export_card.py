"""The model card and the record of an export."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ftcore.batch.cursor import Cursor
from ftcore.checkpoint.find import Found
from ftcore.checkpoint.manifest import Manifest
from ftcore.data.prepared import ModelSource, Prepared, PreparedSet
from ftcore.export_card import Card, evaluation_losses, record_of, render_card, training_losses
from ftcore.export_loading import loading_code
from ftcore.export_verify import Fidelity
from ftcore.spec.resolved import Host, ResolvedSpec
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import AdapterSection, BatchSection, DataSection, DataSet, MethodSection, ModelSection, Spec, TrainingSet, TrainSection

BASE = ModelSource(path="/models/base", revision="abc123", digest="d1gest", name="owner/base", trust_remote_code=False)
SPEC = Spec(
    model=ModelSection(model_name_or_path="owner/base", dtype="bfloat16"),
    method=MethodSection(type="lora", use_dora=True),
    data=DataSection(train=TrainingSet(path="train|1.jsonl"), eval=DataSet(path="eval.jsonl")),
    batch=BatchSection(tokens_per_update=1000),
    train=TrainSection(max_steps=3),
)


def lines(path: Path, *records: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def make_card(folder: Path, method: MethodSection = SPEC.method, **changes: Any) -> Card:
    """A card of a run whose checkpoint after update 3 is exported, and that went on to update 4."""
    checkpoint = folder / "checkpoints" / "update_00000003"
    checkpoint.mkdir(parents=True)
    cursor = Cursor(next_update=3, steps_taken=2, samples_seen=24, supervised_tokens_seen=1200, tokens_seen=3000, order_seed=1, data_fingerprint="f")
    (checkpoint / "cursor.json").write_text(cursor.to_json())
    lines(
        folder / "metrics.jsonl",
        {"update": 1, "loss": 2.5, "losses": {"one": 2.75}},
        {"update": 2, "loss": "nan"},
        {"update": 3, "loss": 1.5, "losses": {"one": 1.75}},
        {"update": 4, "loss": 0.5},
    )
    evaluations = [{"event": "evaluation", "set": "eval", "update": update, "loss": loss} for update, loss in ((0, 3.0), (3, 9.0), (3, 2.0), (4, 1.0))]
    lines(folder / "events.jsonl", *evaluations, {"event": "note", "update": 2, "loss": 7})
    manifest = Manifest(
        update=3,
        world_size=2,
        zero_stage=3,
        precision="bf16",
        optimizer="adamw",
        base={"name": "owner/base"},
        parameters={},
        versions={"torch": "2.13.0"},
        files=(),
        metric=2.0,
    )
    counted = PreparedSet(arrow="x", samples=9, rows=10, tokens=12345, supervised_tokens=6000, fingerprint="f1ngerprint")
    values: dict[str, Any] = {
        "run_dir": RunDir(folder),
        "resolved": ResolvedSpec(spec=replace(SPEC, method=method), hosts=(Host(name="localhost", slots=2),), sources={}, cache_dir="c"),
        "prepared": Prepared(train={"train": counted}, eval={"eval": counted}, model=BASE),
        "found": Found(checkpoint, manifest),
        "form": "adapter",
        "adapters": (),
        "nested": False,
        "vocab_size": 97,
        "fidelity": Fidelity(reload=0.00125, quantisation=None),
    }
    return Card(**{**values, **changes})


def test_what_a_card_tells(tmp_path: Path) -> None:
    text = render_card(make_card(tmp_path))
    _, front, body = text.split("---\n", 2)
    told = yaml.safe_load(front)
    assert told["base_model"] == "owner/base" and told["library_name"] == "peft" and told["base_model_relation"] == "adapter"
    assert told["tags"] == ["ftlaunch", "lora", "dora"]
    assert "| revision | abc123 |" in body and "d1gest" in body and "97 entries" in body
    assert r"| train | train\|1.jsonl | 10 | 9 | 12,345 | 6,000 | f1ngerprint |" in body and "| eval | eval.jsonl |" in body
    assert "| updates | 3 (2 optimizer steps) |" in body and "1,200 of 3,000 tokens" in body
    assert "| training | 2.5000 (update 1) | 1.5000 (update 3) |" in body
    assert "| eval | 3.0000 (before training) | 2.0000 (update 3) |" in body
    assert "bf16" in body and "| ranks and ZeRO stage, of its last launch | 2, stage 3 |" in body and "torch 2.13.0" in body and "at most 1000 tokens" in body
    assert "largest difference of a logit 0.00125" in body and "quantised" not in body


def test_losses_of_a_run_that_kept_no_files(tmp_path: Path) -> None:
    assert training_losses(RunDir(tmp_path), 3) == {} and evaluation_losses(RunDir(tmp_path), 3) == {}
    card = make_card(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "events.jsonl").write_text("damaged")
    assert "## Loss" not in render_card(card)


def test_one_of_several_adapters(tmp_path: Path) -> None:
    """Its own training loss; no evaluation, since no one wrote down of which adapter it was."""
    method = MethodSection(type="lora", adapters={"one": AdapterSection(r=2), "two": AdapterSection()})
    card = make_card(tmp_path, method, adapters=("one",))
    text = render_card(card)
    assert "| training | 2.7500 (update 1) | 1.7500 (update 3) |" in text and "| eval | 3.0000" not in text
    assert "| adapter one | r 2, lora_alpha 32 |" in text
    assert record_of(card)["adapters"] == ["one"]


def test_the_record(tmp_path: Path) -> None:
    method = MethodSection(type="qlora")
    record = record_of(make_card(tmp_path, method, fidelity=Fidelity(reload=0.5, quantisation=1.5)))
    assert record == {
        "form": "adapter",
        "method": "qlora",
        "update": 3,
        "metric": 2.0,
        "base": "owner/base",
        "base_revision": "abc123",
        "base_digest": "d1gest",
        "vocab_size": 97,
        "largest_logit_difference": 0.5,
        "quantisation_logit_difference": 1.5,
    }


def test_cards_of_other_methods(tmp_path: Path) -> None:
    eight = render_card(make_card(tmp_path / "8", MethodSection(type="qlora", bits=8), fidelity=Fidelity(reload=0.0, quantisation=0.25)))
    assert "held in 8 bits (QLoRA)" in eight and "at most 0.25." in eight and "- qlora" in eight
    four = render_card(make_card(tmp_path / "4", MethodSection(type="qlora", double_quant=False)))
    assert "held in 4 bits, nf4 (QLoRA)" in four
    full = render_card(make_card(tmp_path / "full", MethodSection(), form="hf"))
    assert "library_name: transformers" in full and "target_modules" not in full and "# Fine-tuned model of owner/base" in full


def test_code_that_loads() -> None:
    """A hub model by its name and commit, a local one by its path; with code of its own when it was allowed."""
    code = loading_code(SPEC, BASE, "adapter", ())
    assert 'base = AutoModelForCausalLM.from_pretrained("owner/base", revision="abc123", dtype="bfloat16")' in code
    local = replace(BASE, revision="", trust_remote_code=True)
    code = loading_code(SPEC, local, "adapter", ("one", "two"))
    assert 'base = AutoModelForCausalLM.from_pretrained("/models/base", dtype="bfloat16", trust_remote_code=True)' in code
    assert 'model.load_adapter("two", adapter_name="two")' in code
    assert "bits = BitsAndBytesConfig(load_in_8bit=True)" in "\n".join(
        loading_code(replace(SPEC, method=MethodSection(type="qlora", bits=8)), BASE, "adapter", ())
    )
    four = loading_code(replace(SPEC, method=MethodSection(type="qlora", compute_dtype="float32")), BASE, "adapter", ())
    assert "bnb_4bit_compute_dtype=torch.float32)" in "\n".join(four) and 'dtype="bfloat16"' in "\n".join(four)
    assert "peft" not in "\n".join(loading_code(SPEC, BASE, "merged", ()))


def test_a_hub_base_is_named_with_its_commit(tmp_path: Path) -> None:
    """The path of a download is this machine's alone; a local base keeps its path."""
    from ftcore.export_forms import name_base

    config = tmp_path / "adapter_config.json"
    config.write_text('{"base_model_name_or_path": "/models/base", "r": 4}')
    name_base(tmp_path, replace(BASE, revision=""))
    assert json.loads(config.read_text()) == {"base_model_name_or_path": "/models/base", "r": 4}
    name_base(tmp_path, BASE)
    assert json.loads(config.read_text()) == {"base_model_name_or_path": "owner/base", "r": 4, "revision": "abc123"}
