"""The runs of an array."""

from __future__ import annotations

import pytest

from ftcore.spec.errors import SpecError
from launcher.submission.elements import Element, expand_array, full_key, split_values


def test_without_an_array_there_is_one_run() -> None:
    assert expand_array(()) == (Element(sets=(), label=""),)


def test_each_combination() -> None:
    elements = expand_array(("lr=1e-5,2e-5", "train.seed=1,2"))
    assert [element.sets for element in elements] == [
        ("optimizer.learning_rate=1e-5", "train.seed=1"),
        ("optimizer.learning_rate=1e-5", "train.seed=2"),
        ("optimizer.learning_rate=2e-5", "train.seed=1"),
        ("optimizer.learning_rate=2e-5", "train.seed=2"),
    ]
    assert elements[1].label == "learning_rate=1e-5_seed=2"


def test_names_of_folders_are_plain() -> None:
    (element, other) = expand_array(("data.train.path=/a/../b c.jsonl,$HOME/x",))
    assert (element.label, other.label) == ("path=-a-..-b-c.jsonl", "path=-HOME-x")


@pytest.mark.parametrize(
    ("text", "values"),
    [("1,2", ["1", "2"]), ("[a,b],[c]", ["[a,b]", "[c]"]), ("'x,y',z", ["'x,y'", "z"]), ("", [""]), ("a,,b", ["a", "", "b"])],
)
def test_values(text: str, values: list[str]) -> None:
    assert split_values(text) == values


@pytest.mark.parametrize(
    ("name", "key"), [("lr", "optimizer.learning_rate"), ("epochs", "train.num_train_epochs"), ("train.seed", "train.seed"), ("zzz", "zzz")]
)
def test_short_names(name: str, key: str) -> None:
    assert full_key(name) == key


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        (("lr",), "`KEY=V1,V2` expected"),
        (("lr=1,",), "`KEY=V1,V2` expected"),
        (("lr=1e-5,1e-5",), "one value twice"),
        (("lr=1", "optimizer.learning_rate=2"), "optimizer.learning_rate is given twice"),
        (("model.model_name_or_path=a/b,a:b",), "the same name"),
        (("train.seed=" + ",".join(map(str, range(40))), "data.max_length=" + ",".join(map(str, range(1, 40)))), "more than 1000 runs"),
    ],
)
def test_mistakes(arrays: tuple[str, ...], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        expand_array(arrays)


def test_all_mistakes_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        expand_array(("lr", "train.seed=1,1"))
    assert len(caught.value.problems) == 2
