"""`plan --exact`: a micro-step of any architecture run without memory; for known families it says what the formulas say."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from transformers import AutoConfig

from ftcore.exact_trace import PRINTED, TracedRow, main, trace
from ftcore.spec.errors import SpecError
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.sections import MethodSection
from launcher.commands import plan
from launcher.memory import exact_shape as launched
from launcher.memory.activation_row import Row
from launcher.memory.activations import AT_WORST, backward_extra, count_activations
from launcher.memory.exact_shape import exact_model
from launcher.memory.ledger import build_ledger
from launcher.memory.shape import read_shape
from tests.unit.test_activations import resolved_of

SIZES = {"vocab_size": 4096, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 3, "num_attention_heads": 4}
LLAMA: dict[str, Any] = {"model_type": "llama", **SIZES, "num_key_value_heads": 2}
QWEN3: dict[str, Any] = {"model_type": "qwen3", **SIZES, "num_key_value_heads": 2, "head_dim": 64}
LORA, QLORA = MethodSection(type="lora", r=8), MethodSection(type="qlora", r=8)
DORA = replace(LORA, use_dora=True)


def with_model(resolved: ResolvedSpec, path: Path, *, stage: int = 2) -> ResolvedSpec:
    spec = resolved.spec
    return replace(resolved, spec=replace(spec, model=replace(spec.model, model_name_or_path=str(path)), zero=replace(spec.zero, stage=stage)))


def both(
    config: dict[str, Any], resolved: ResolvedSpec, segments: tuple[int, ...], *, on_cpu: bool = False, supervised: int = 64
) -> tuple[dict[str, Any], Any]:
    """The trace, and what the formulas say."""
    padded = resolved.spec.batch.layout == "padded"
    sizes: dict[str, Any] = {"segments": segments, "supervised": supervised, "padded": padded, "on_cpu": on_cpu}
    return trace(AutoConfig.for_model(**config), resolved.spec, TracedRow(**sizes)), count_activations(resolved, read_shape(config), Row(**sizes))


@pytest.mark.parametrize(
    ("config", "resolved", "stage"),
    [
        (LLAMA, resolved_of(), 2),
        (LLAMA, resolved_of(method=replace(LORA, lora_dropout=0.1)), 2),
        (LLAMA, resolved_of(method=QLORA, checkpointing="full", precision="fp32"), 2),
        (QWEN3, resolved_of(method=LORA), 3),
        ({"model_type": "gemma3_text", **SIZES, "num_key_value_heads": 2, "head_dim": 32}, resolved_of(method=LORA), 2),
        ({"model_type": "mixtral", **SIZES, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}, resolved_of(), 2),
    ],
    ids=["llama", "llama-lora-dropout", "llama-qlora-recomputed", "qwen3-lora-stage-3", "gemma3-lora", "mixtral"],
)
def test_a_known_family_saves_what_the_formulas_say(config: dict[str, Any], resolved: ResolvedSpec, stage: int) -> None:
    """J07: within 2 %, as on an accelerator."""
    found, counted = both(config, with_model(resolved, Path("made"), stage=stage), (100, 156))
    assert found["saved"] == pytest.approx(counted.held, rel=0.02)
    assert found["logits"] == counted.logits


@pytest.mark.parametrize(
    ("config", "resolved", "segments"),
    [
        (LLAMA, resolved_of(method=DORA), (100, 156)),
        (LLAMA, resolved_of(method=replace(DORA, lora_dropout=0.1), precision="bf16_autocast"), (256,)),
        (LLAMA, resolved_of(method=replace(QLORA, use_dora=True), checkpointing="full"), (256,)),
        (LLAMA, resolved_of(method=replace(QLORA, use_dora=True, lora_dropout=0.1)), (256,)),
        (LLAMA, resolved_of(precision="bf16_autocast"), (256,)),
        (LLAMA, resolved_of(precision="bf16_autocast", checkpointing="full"), (256,)),
        (QWEN3, resolved_of(precision="bf16_autocast", method=LORA), (100, 156)),
        (LLAMA, resolved_of(layout="padded"), (100, 156)),
        (LLAMA, resolved_of(layout="padded", precision="fp32", checkpointing="full", method=LORA), (128, 128)),
        (QWEN3, resolved_of(method=replace(LORA, target_modules=("q_proj",))), (256,)),
        (LLAMA, resolved_of(method=replace(LORA, target_modules=("up_proj", "down_proj"))), (256,)),
        (LLAMA, resolved_of(method=replace(LORA, target_modules=("gate_proj",))), (256,)),
        ({**LLAMA, "model_type": "mistral", "sliding_window": 64}, resolved_of(), (156, 60, 40)),
        ({"model_type": "gpt2", "vocab_size": 60000, "n_embd": 128, "n_layer": 3, "n_head": 4}, resolved_of(method=LORA), (100, 156)),
    ],
    ids=[
        *(
            "dora",
            "dora-dropout-autocast",
            "dora-qlora-recomputed",
            "dora-qlora-dropout",
            "autocast",
            "autocast-recomputed",
            "qwen3-autocast-lora",
            "padded",
            "padded-recomputed",
        ),
        *("partial-queries", "partial-mlp", "partial-gate", "window", "gpt2"),
    ],
)
def test_what_is_saved_and_the_highest_point(config: dict[str, Any], resolved: ResolvedSpec, segments: tuple[int, ...]) -> None:
    """J07: within 2 %; autocast, DoRA, padding, adapters in a part of the matrices, windows."""
    found, counted = both(config, resolved, segments)
    assert counted.held == pytest.approx(found["saved"], rel=0.02)
    assert counted.held + counted.logits + backward_extra(counted)[0] == pytest.approx(found["saved"] + found["logits"] + found["backward"], rel=0.02)


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")
@pytest.mark.parametrize(
    ("family", "method"), [("mixtral", MethodSection()), ("mixtral", LORA), ("qwen3_moe", MethodSection()), ("qwen3_moe", LORA), ("llama", MethodSection())]
)
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_few_tokens_in_a_large_layer(family: str, method: MethodSection, checkpointing: str) -> None:
    """The gradient of the layer's largest matrices, those of all experts in one, is the highest point."""
    sizes = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {
        "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
        "qwen3_moe": {"head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512},
    }
    config = {"model_type": family, **sizes, **experts.get(family, {})}
    found, counted = both(config, resolved_of(method=method, checkpointing=checkpointing), (64,), supervised=16)
    assert counted.held + counted.logits + backward_extra(counted)[0] == pytest.approx(found["saved"] + found["logits"] + found["backward"], rel=0.02)


def test_the_loss_needs_no_second_tensor_as_large_as_the_logits() -> None:
    """What is on top of the logits is the loss's own block, not the gradient of a choice."""
    found, counted = both({**LLAMA, "vocab_size": 65536}, resolved_of(method=LORA, precision="bf16"), (256,), on_cpu=True)
    assert found["backward"] < counted.logits * 2
    assert found["backward"] == pytest.approx(backward_extra(counted)[0], rel=0.05)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_matrix_that_is_head_and_embedding(checkpointing: str) -> None:
    """At the end both of its gradients are alive, and their sum: so it is with real tensors too."""
    found, counted = both({**LLAMA, "vocab_size": 65536, "tie_word_embeddings": True}, resolved_of(checkpointing=checkpointing), (100, 156))
    matrix = 2 * 65536 * 128
    assert found["saved"] + found["logits"] + found["backward"] == pytest.approx(3 * matrix, rel=0.02)
    extra, moment = backward_extra(counted)
    assert counted.held + counted.logits + extra == 3 * matrix and moment == "gradients of the matrix that is head and embedding"


@pytest.mark.parametrize("family", ["stablelm", "cohere", "bloom", "opt"])
def test_a_family_that_the_formulas_do_not_know(family: str) -> None:
    config = AutoConfig.for_model(family, **SIZES, **({"num_key_value_heads": 4} if family == "stablelm" else {}))
    found = trace(config, resolved_of(method=LORA, checkpointing="full").spec, TracedRow(segments=(256,), supervised=64, padded=False, on_cpu=False))
    assert found["saved"] > 3 * 256 * 128 * 2 and found["logits"] == 64 * 4096 * 2 and found["backward"] > 0


def request_of(path: Path, config: dict[str, Any], resolved: ResolvedSpec) -> dict[str, Any]:
    (path / "config.json").write_text(json.dumps(config))
    row = {"segments": (64,), "supervised": 64, "padded": False, "on_cpu": False}
    return {"path": str(path), "gguf_file": "", "revision": "main", "with_code": False, "resolved": with_model(resolved, path).to_json(), "row": row}


def test_the_answer_and_the_reason_when_there_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gemma 2 caps its scores, which packed rows can't have: the run would be refused, and so is the trace; its parameters are told all the same."""
    request = request_of(tmp_path, {"model_type": "gemma2", **SIZES, "num_key_value_heads": 2, "head_dim": 32}, resolved_of())
    assert main(lambda: json.dumps(request)) == 0
    found = json.loads(capsys.readouterr().out.removeprefix(PRINTED))
    assert found["trace"] is None and "softcap" in found["untraced"] and found["shape"]["family"] == "gemma2"
    assert main(lambda: json.dumps(request_of(tmp_path, {"model_type": "nosuch"}, resolved_of()))) == 1
    assert "nosuch" in capsys.readouterr().err


def test_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model_type": "stablelm", **SIZES, "num_key_value_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SpecError, match="--exact"):
        read_shape(config)
    resolved = with_model(resolved_of(), tmp_path)
    found = exact_model(resolved)
    assert found.traced is not None and found.shape.family == "stablelm"
    ledger = build_ledger(resolved, found.shape, traced=found.traced)
    traced = {item.name: item.bytes for item in ledger.items if item.formula.startswith("traced")}
    assert traced == {"activations": found.traced.saved, "logits": found.traced.logits, AT_WORST: found.traced.backward}

    ended = subprocess.CompletedProcess([], 1, "", "ValueError: a reason\n")
    monkeypatch.setattr(launched.subprocess, "run", lambda *_arguments, **_options: ended)
    with pytest.raises(SpecError, match="can't be built: ValueError: a reason"):
        exact_model(resolved)

    def waits(*_arguments: object, **_options: object) -> None:
        raise subprocess.TimeoutExpired([], 1.0)

    monkeypatch.setattr(launched.subprocess, "run", waits)
    with pytest.raises(SpecError, match="took more than 600 s"):
        exact_model(resolved)


@pytest.mark.parametrize(
    ("trace", "says"), [({"saved": 5, "logits": 6, "backward": 7, "operator": "aten.mm"}, "were traced"), (None, "could not be traced: why")]
)
def test_the_plan_says_which_it_was(trace: dict[str, Any] | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "data.jsonl").write_text("{}\n")
    shape = read_shape(LLAMA)
    facts = {**asdict(shape), "tensors": [asdict(tensor) for tensor in shape.tensors]}
    facts = {name: facts[name] for name in facts if name != "gated"}
    answer = PRINTED + json.dumps({"shape": facts, "trace": trace, "untraced": "" if trace else "why"})
    monkeypatch.setattr(launched.subprocess, "run", lambda *_arguments, **_options: subprocess.CompletedProcess([], 0, answer, ""))
    sets = [f"model.model_name_or_path={tmp_path}", f"data.train.path={tmp_path}/data.jsonl", "train.max_steps=1"]
    ended = CliRunner().invoke(plan.command, ["--exact", "--gpu", "h100-80", *sets])
    assert says in " ".join(ended.output.split()), ended.output
    assert "tracing" in ended.stderr
