"""Rules between the keys of a spec's data: what is trained on, mixes, streams, templates and paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftcore.spec.data_paths import file_kind, path_kind
from ftcore.spec.errors import Problem
from launcher.resolve import Options, check_spec, read_and_resolve

MODEL = "model: {model_name_or_path: builtin:tiny-llama}\n"
ROWS = "path: builtin:extraction/train"


def problems_of(tmp_path: Path, text: str) -> list[Problem]:
    spec = tmp_path / "spec.yaml"
    spec.write_text(MODEL + text, encoding="utf-8")
    return check_spec(Options(spec_path=spec))


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("data: {}", "data.train", "add `data.train.path`, or several sets below data.train_sets"),
        (f"data: {{train: {{{ROWS}}}, train_sets: {{train: {{{ROWS}}}}}}}", "data.train_sets.train", "the set of data.train is called train"),
        (f"data: {{train_sets: {{'a b': {{{ROWS}}}}}}}", "data.train_sets.a b", "use letters, digits"),
        (f"data: {{train: {{{ROWS}, weight: 2}}}}", "data.train.weight", "no effect with one set"),
        (f"data: {{train_sets: {{a: {{{ROWS}, weight: 2, samples: 3}}, b: {{{ROWS}, weight: 1}}}}}}", "data.train_sets.a.samples", "keep one of them"),
        (f"data: {{train_sets: {{a: {{{ROWS}, weight: 2}}, b: {{{ROWS}}}}}}}", "data.train_sets.b", "give every set to train on a weight"),
        (f"data: {{train: {{{ROWS}}}, lanes: 4}}", "data.lanes", "no effect without data.streaming"),
        (f"data: {{train: {{{ROWS}}}, streaming: true}}", "data.streaming", "give train.max_steps"),
        (f"data: {{train: {{{ROWS}, epochs: 2}}, streaming: true}}\ntrain: {{max_steps: 3}}", "data.train.epochs", "by weight"),
        (f"data: {{train: {{{ROWS}, revision: v1}}}}", "data.train.revision", "for data sets of the hub"),
        (f"data: {{train: {{{ROWS}, split: test}}}}", "data.train.split", "no effect"),
        ("data: {train: {path: a/b, format: text, roles: {bot: assistant}}}", "data.train.roles", "have no roles"),
        ("data: {train: {path: a/b, columns: {prompts: q}}}", "data.train.columns.prompts", "did you mean `prompt`?"),
        ("data: {train: {path: 'none/*.jsonl'}}", "data.train.path", "no file fits"),
        ("data: {train: {path: data/train.jsonl}}", "data.train.path", "no such file"),
        (f"data: {{train: {{{ROWS}}}, chat_template: chatlm}}", "data.chat_template", "did you mean `chatml`?"),
        (f"data: {{train: {{{ROWS}}}, chat_template: my.jinja}}", "data.chat_template", "no such file"),
        (f"data: {{train: {{{ROWS}}}, eval: {{{ROWS}, weight: 1}}}}", "data.eval.weight", "unknown key"),
    ],
)
def test_mistake(tmp_path: Path, text: str, where: str, words: str) -> None:
    found = problems_of(tmp_path, text + "\n")
    assert any(problem.where == where and words in f"{problem.what} {problem.fix}" for problem in found), found


def test_right_sets(tmp_path: Path) -> None:
    text = (
        "data: {train_sets: {a: {path: builtin:extraction/train, weight: 0.3}, b: {path: open/rows, name: main, revision: v2, weight: 0.7}}, overlong: split}\n"
    )
    assert problems_of(tmp_path, text) == []
    assert (
        problems_of(
            tmp_path, "data: {train: open/rows, streaming: true, lanes: 4, repeat: false}\ntrain: {max_steps: 3}\n".replace("open/rows", "{path: open/rows}")
        )
        == []
    )


def test_a_folder_needs_data(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    text = f"data: {{train: {{path: {folder}}}}}\n"
    (folder / "notes.md").write_text("no rows")
    assert "holds no data file" in problems_of(tmp_path, text)[0].what
    (folder / "part-1.jsonl.zst").write_bytes(b"")
    assert problems_of(tmp_path, text) == []


def test_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("prompt,completion\na,b\n")
    Path("mine.jinja").write_text("x")
    Path("spec.yaml").write_text(MODEL + "data: {train_sets: {a: {path: '*.csv'}, b: {path: open/rows}}, eval: {path: rows.csv}, chat_template: mine.jinja}\n")
    data = read_and_resolve(Options(spec_path=Path("spec.yaml"))).resolved.spec.data
    assert {name: each.path for name, each in data.training.items()} == {"a": str(tmp_path / "*.csv"), "b": "open/rows"}
    assert data.eval is not None and (data.eval.path, data.chat_template) == (str(tmp_path / "rows.csv"), str(tmp_path / "mine.jinja"))
    assert list(data.all_sets) == ["data.train_sets.a", "data.train_sets.b", "data.eval"]


def test_what_a_path_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    names = {
        "builtin:x": "builtin",
        "owner/name": "local",
        "owner/other": "hub",
        "owner/other.jsonl": "local",
        "a/*.csv": "glob",
        "squad": "local",
        "a/b/c": "local",
    }
    assert {name: path_kind(name) for name in names} == names
    assert [file_kind(name) for name in ("A.JSONL.GZ", "b.parquet", "c.txt", "d.tsv.xz", "e.zst")] == [
        ("jsonl", "gzip"),
        ("parquet", ""),
        None,
        ("csv", "xz"),
        None,
    ]
