"""Data file -> cached samples: lengths, drops, counts, cache keys (cases B15, C09, D10, D15, D20, E04)."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcore.data.cache import SampleSet
from ftcore.data.cache_key import cache_key
from ftcore.data.prepared import ModelSource, PreparedSet
from ftcore.spec.errors import DataError
from ftcore.tiny_llama import tiny_tokenizer
from tests.unit.base_models import SMOLLM2, base_model
from tests.unit.made_tokenizers import MISTRAL
from tests.unit.prepared_sets import prepared, section, tiny_source

CASES = Path(__file__).resolve().parents[1] / "cases" / "data"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return tiny_source(tmp_path_factory.mktemp("tokenizer"))


def made(name: str, tiny: ModelSource, cache: Path, *, max_length: int = 1024, overlong: str = "drop") -> PreparedSet:
    return prepared(section(CASES / name, max_length=max_length, overlong=overlong), tiny, cache)


@pytest.mark.parametrize(
    ("name", "samples"),
    [
        ("bom.jsonl", 2),
        ("mixed_types.jsonl", 3),
        ("extra_field_last_row.jsonl", 6),
        ("crlf_blank_lines.jsonl", 2),
        ("one_big_array.json", 2),
        ("double_assistant.jsonl", 1),
        ("roles_uau_u.jsonl", 1),
        ("empty_assistant.jsonl", 1),
    ],
)
def test_case_files(name: str, samples: int, tiny: ModelSource, tmp_path: Path) -> None:
    kept = made(name, tiny, tmp_path)
    assert (kept.samples, kept.rows, kept.dropped) == (samples, samples, {})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("empty.jsonl", "no rows"),
        ("truncated_line_3.jsonl", "truncated_line_3.jsonl:3: row 3: not JSON"),
        ("array_per_line.jsonl", "array_per_line.jsonl:1: row 1: a row must be a JSON object"),
        ("no_assistant.jsonl", "no row is left: of 1 rows, 1 no_supervised_tokens"),
        ("starts_with_assistant.jsonl", "row 1: the first message is the assistant's, nothing prompts it (roles: assistant user assistant)"),
        ("tools_two_schemas.jsonl", "row 2: the row has tools, and the chat template ignores them"),
    ],
)
def test_refused_case_files(name: str, reason: str, tiny: ModelSource, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        made(name, tiny, tmp_path)
    assert reason in str(caught.value)
    assert not list((tmp_path / "data").glob("*.arrow"))


@pytest.mark.parametrize(("overlong", "reason"), [("drop", "overlong"), ("truncate_right", "no_supervised_tokens")])
@pytest.mark.parametrize("model", [SMOLLM2, "tiny"])
def test_long_prompt_with_a_short_answer(overlong: str, reason: str, model: str, tiny: ModelSource, tmp_path: Path) -> None:
    """C09: at 64 tokens nothing of the answer is left of 1 of 2 rows."""
    source = tiny if model == "tiny" else base_model(model)
    length = 64 if model != "tiny" else 100
    kept = made("long_prompt_short_answer.jsonl", source, tmp_path, max_length=length, overlong=overlong)
    assert (kept.samples, kept.rows, kept.dropped) == (1, 2, {reason: 1})


@pytest.mark.parametrize("overlong", ["drop", "truncate_right"])
def test_all_rows_dropped(overlong: str, tiny: ModelSource, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no row is left: of 2 rows, 2 "):
        made("long_prompt_short_answer.jsonl", tiny, tmp_path, max_length=8, overlong=overlong)


def test_overlong_rows_as_errors(tiny: ModelSource, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"long_prompt_short_answer.jsonl:1: row 1: \d+ tokens, data.max_length is 100"):
        made("long_prompt_short_answer.jsonl", tiny, tmp_path, max_length=100, overlong="error")


@pytest.mark.parametrize("overlong", ["drop", "truncate_right"])
def test_tokens_in_are_tokens_kept_and_dropped(overlong: str, tiny: ModelSource, tmp_path: Path) -> None:
    """E04, over rows of all lengths."""
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": "p" * (7 * size % 60), "completion": "c" * size} for size in range(80)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    everything = prepared(section(path, form="prompt_completion"), tiny, tmp_path)
    kept = prepared(section(path, form="prompt_completion", max_length=40, overlong=overlong), tiny, tmp_path)
    assert everything.tokens + everything.dropped_tokens == sum(len(row["prompt"]) + len(row["completion"]) + 1 for row in rows)
    assert kept.tokens + kept.dropped_tokens == everything.tokens + everything.dropped_tokens
    assert kept.samples + sum(kept.dropped.values()) == kept.rows == 80
    samples = SampleSet.open(kept.arrow)
    assert samples.lengths.max() <= 40
    assert samples.supervised.min() >= 1
    assert kept.supervised_tokens == samples.supervised.sum()
    assert (kept.truncated > 0) == (overlong == "truncate_right")
    assert set(samples.rows.tolist()) <= set(range(1, 81))


def test_template_that_refuses_rows_names_them_all(tiny: ModelSource, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = MISTRAL
    tokenizer.save_pretrained(tmp_path / "model")
    rows = [["user", "assistant"], ["user", "user", "assistant"], ["system", "user", "assistant"]]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"messages": [{"role": role, "content": "x"} for role in row]}) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        prepared(section(path), replace(tiny, path=str(tmp_path / "model")), tmp_path)
    assert [(problem.line, problem.where) for problem in caught.value.problems] == [(2, "row 2"), (3, "row 3")]
    assert "(roles: system user assistant)" in str(caught.value)


def test_everything_that_matters_is_in_the_key(tiny: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B15: whatever of the parts changes makes another cache."""
    model = tmp_path / "model"
    shutil.copytree(tiny.path, model)
    source, data = replace(tiny, path=str(model)), section("rows.jsonl")
    assert data.train is not None
    train = data.train
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}", encoding="utf-8")
    keys = [cache_key("data", train, data, source), cache_key("other data", train, data, source)]
    sets = [replace(train, columns={"messages": "m"}), replace(train, format="text"), replace(train, roles={"human": "user"})]
    keys += [cache_key("data", each, data, source) for each in sets]
    changes: list[dict[str, Any]] = [{"max_length": 1023}, {"overlong": "error"}, {"loss_on": "all"}, {"on_bad_row": "drop"}, {"chat_template": "chatml"}]
    keys += [cache_key("data", train, replace(data, **change), source) for change in [*changes, {"chat_template": str(template)}]]
    template.write_text("{{ messages }}!", encoding="utf-8")
    keys += [cache_key("data", train, replace(data, chat_template=str(template)), source)]
    keys += [cache_key("data", train, data, replace(source, trust_remote_code=True))]
    own = model / "chat_template.jinja"
    own.write_text(own.read_text().replace("assistant", "Assistant", 1), encoding="utf-8")
    keys += [cache_key("data", train, data, source)]
    vocabulary = model / "tokenizer.json"
    vocabulary.write_text(vocabulary.read_text() + " ", encoding="utf-8")
    keys += [cache_key("data", train, data, source)]
    assert len(set(keys)) == len(keys)
    for same in (replace(train, path="elsewhere.jsonl"), replace(train, epochs=2.0)):
        assert cache_key("data", same, data, source) == keys[-1]
    (model / "model.safetensors").write_bytes(b"weights")
    (model / "generation_config.json").write_text("{}")
    assert cache_key("data", train, replace(data, num_proc=2), source) == keys[-1]
    monkeypatch.setattr("ftcore.data.cache_key.code_digest", lambda: "another version")
    assert cache_key("data", train, data, source) not in keys


def test_one_character_of_the_data_makes_it_anew_and_a_touched_file_does_not(tiny: ModelSource, tmp_path: Path) -> None:
    """B15."""
    path = tmp_path / "rows.jsonl"
    shutil.copy(CASES / "bom.jsonl", path)
    first = prepared(section(path), tiny, tmp_path)
    os.utime(path)
    assert prepared(section(path), tiny, tmp_path) == first
    shutil.copy(path, tmp_path / "copy.jsonl")
    assert prepared(section(tmp_path / "copy.jsonl"), tiny, tmp_path).arrow == first.arrow
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("Blue", "Blve", 1), encoding="utf-8")
    assert prepared(section(path), tiny, tmp_path).arrow != first.arrow


def test_second_time_comes_from_the_cache_and_a_changed_template_does_not(tiny: ModelSource, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny.path, model)
    source = replace(tiny, path=str(model))
    first = made("bom.jsonl", source, tmp_path)
    written = Path(first.arrow).stat().st_mtime_ns
    assert made("bom.jsonl", source, tmp_path) == first
    assert Path(first.arrow).stat().st_mtime_ns == written
    template = model / "chat_template.jinja"
    template.write_text(template.read_text().replace("'<|im_end|>' + '\\n'", "'<|im_end|>' + ' '"), encoding="utf-8")
    second = made("bom.jsonl", source, tmp_path)
    assert second.arrow != first.arrow
    assert second.fingerprint != first.fingerprint


def test_two_processes_make_the_same_cache(tiny: ModelSource, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\nfrom ftcore.data.prepared import ModelSource\nfrom tests.unit.prepared_sets import prepared, section\n"
        f"source = ModelSource(path={tiny.path!r}, revision='', digest='', name='tiny', trust_remote_code=False)\n"
        f"print(prepared(section('builtin:extraction/eval'), source, Path({str(tmp_path)!r})))"
    )
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=CASES.parents[2], text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=300)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert outputs[0] == outputs[1] != ""
    assert len(list((tmp_path / "data").glob("*.arrow"))) == 1


def test_errors_survive_the_way_from_a_process() -> None:
    error = DataError("what", where="where", fix="fix")
    assert pickle.loads(pickle.dumps(error)).problems == error.problems


def test_preparing_from_the_cache_imports_no_torch(tiny: ModelSource, tmp_path: Path) -> None:
    expected = made("bom.jsonl", tiny, tmp_path)
    program = (
        "import sys; from pathlib import Path; import ftcore.prepare\n"
        "from ftcore.data.build import prepare_set; from ftcore.data.prepared import ModelSource; from ftcore.spec.sections import DataSection, TrainingSet\n"
        f"source = ModelSource(path={tiny.path!r}, revision='', digest='', name='tiny', trust_remote_code=False)\n"
        f"data = DataSection(train=TrainingSet(path={str(CASES / 'bom.jsonl')!r}, format='messages'))\n"
        f"print(prepare_set('data.train', data.train, data, source, Path({str(tmp_path)!r})).fingerprint)\n"
        "assert not {'torch', 'transformers', 'pandas'} & set(sys.modules), 'heavy imports'"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=CASES.parents[2], check=True)
    assert done.stdout.strip() == expected.fingerprint
