"""Loading a tokenizer: what can't be used is refused with the fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import ByT5Tokenizer

from ftcore.data.tokenizer import load_tokenizer, tokenizer_digest, writes_date
from ftcore.spec.errors import DataError, SpecError
from ftcore.tiny_llama import tiny_tokenizer


def test_slow_tokenizer(tmp_path: Path) -> None:
    ByT5Tokenizer().save_pretrained(tmp_path)
    with pytest.raises(DataError, match="ByT5Tokenizer gives no character offsets"):
        load_tokenizer(str(tmp_path))


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="can't load the tokenizer of"):
        load_tokenizer(str(tmp_path))


def test_code_of_the_folder_does_not_run(tmp_path: Path) -> None:
    tiny_tokenizer().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["tokenizer_class"] = "Own"
    config["auto_map"] = {"AutoTokenizer": [None, "tokenization_own.Own"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "tokenization_own.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\nclass Own: pass\n")
    with pytest.raises(SpecError, match=r"model\.trust_remote_code"):
        load_tokenizer(str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_template_that_writes_the_date(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    before = tokenizer_digest(str(tmp_path))
    assert not writes_date(str(tmp_path))
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }}" + tokenizer.chat_template
    tokenizer.save_pretrained(tmp_path)
    assert writes_date(str(tmp_path))
    assert tokenizer_digest(str(tmp_path)) != before


def test_a_template_for_rows_with_tools_is_among_the_files(tmp_path: Path) -> None:
    """B15: transformers keeps templates of other names in a folder, and takes the one called tool_use for rows with tools."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = {"default": tokenizer.chat_template, "tool_use": "{{ tools }}" + tokenizer.chat_template}
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).get_chat_template(tools=[{}]).startswith("{{ tools }}")
    before = tokenizer_digest(str(tmp_path))
    template = tmp_path / "additional_chat_templates" / "tool_use.jinja"
    template.write_text(template.read_text().replace("{{ tools }}", "{{ tools  }}"))
    assert tokenizer_digest(str(tmp_path)) != before
