"""What was trained is what is served: an export has the chat template of the training and stops on the ends it taught."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from ftcore.data.prepared import Prepared
from ftcore.data.templates.named import template_text
from ftcore.data.templates.tokenise import make_tokenise
from ftcore.data.tokenizer import load_tokenizer, writes_date
from ftcore.export_forms import Trained, save_whole
from ftcore.prepare_evaluation import uses_trained_template
from ftcore.spec.run_dir import RunDir
from ftcore.spec.sections import DataSection, MethodSection, ModelSection, Spec, TrainingSet
from tests.unit.base_models import TINY_LLAMA, base_model
from tests.unit.chats import chat, learned
from tests.unit.made_tokenizers import CHATML

OTHER_END = CHATML.replace("<|im_end|>' + '\n' }}{% endfor", "<|pad|>' + '\n' }}{% endfor")


@pytest.mark.parametrize(
    ("template", "own", "stops"), [("chatml", 258, 258), ("file", 258, [256, 258]), ("file", [300, 258], [256, 258, 300]), ("", None, 258)]
)
def test_export_has_the_template_and_its_stops(template: str, own: Any, stops: Any, tmp_path: Path) -> None:
    """The file may be gone by then: the run keeps its text."""
    source = base_model(TINY_LLAMA)
    choice = template
    if template == "file":
        choice = str(tmp_path / "own.jinja")
        Path(choice).write_text(OTHER_END, encoding="utf-8")
    text = template_text(choice) or ""
    tokenise = make_tokenise(source, choice, "assistant")
    if template == "file":
        Path(choice).unlink()
    data = DataSection(train=TrainingSet(path="rows.jsonl"), chat_template=choice)
    spec = Spec(model=ModelSection(model_name_or_path=TINY_LLAMA), method=MethodSection(type="full"), data=data)
    model = AutoModelForCausalLM.from_pretrained(source.path)
    model.generation_config.eos_token_id = own
    save_whole(model, tmp_path / "export", Trained(spec=spec, source=source, chat_template=text, found=None))  # type: ignore[arg-type]
    assert json.loads((tmp_path / "export" / "generation_config.json").read_text())["eos_token_id"] == stops
    exported = AutoTokenizer.from_pretrained(tmp_path / "export")
    row = chat("u Hi", "a Hello")
    (tokens,) = tokenise([row])
    assert exported.apply_chat_template(row.messages, tokenize=True, return_dict=False) == tokens.ids.tolist()
    assert tokens.ids[tokens.spans[0][1] - 1] in (stops if isinstance(stops, list) else [stops])
    served = make_tokenise(replace(source, path=str(tmp_path / "export")), "", "assistant")
    assert learned(exported.backend_tokenizer, served([row])[0]) == learned(exported.backend_tokenizer, tokens)


def test_template_of_the_spec_that_writes_the_date(tmp_path: Path) -> None:
    source, file = base_model(TINY_LLAMA), tmp_path / "dated.jinja"
    file.write_text("{{ strftime_now('%Y') }}" + CHATML, encoding="utf-8")
    assert writes_date(source.path, str(file)) and not writes_date(source.path, "chatml") and not writes_date(source.path)
    assert load_tokenizer(source.path, chat_template=str(file)).chat_template.startswith("{{ strftime_now")


def test_evaluation_with_another_template_than_the_run_had(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text(CHATML, encoding="utf-8")
    run = RunDir(tmp_path)
    assert uses_trained_template(run, str(file))
    run.prepared.write_text(Prepared(train={}, eval={}, model=base_model(TINY_LLAMA), chat_template=CHATML).to_json(), encoding="utf-8")
    assert uses_trained_template(run, str(file))
    assert not uses_trained_template(run, "chatml") and not uses_trained_template(run, "")
    file.write_text(OTHER_END, encoding="utf-8")
    assert not uses_trained_template(run, str(file))
