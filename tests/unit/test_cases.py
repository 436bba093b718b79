"""Public faults of hostfiles and specs, a test for each kind, through the functions that the command line calls.

A01, A03-A07, A13, B01, B02, B04, B05, B07, B14.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ftcore.spec.errors import ClusterError
from launcher.environment import read_env_file
from launcher.filters import select
from launcher.hostfile import read_hostfile, same_machine_warnings
from launcher.resolve import Options, check_spec, read_and_resolve

CASES = Path(__file__).parents[1] / "cases"
HOSTFILES = CASES / "hostfiles"
MINIMAL = "model: {model_name_or_path: builtin:tiny-llama}\ndata: {train: {path: builtin:extraction/train}}\n"


def slots(name: str) -> dict[str, int]:
    return {host.name: host.slots for host in read_hostfile(HOSTFILES / name)}


@pytest.mark.parametrize(
    ("include", "expected"), [("alpha", {"alpha": 2}), ("beta@alpha", {"alpha": 2, "beta": 2}), ("alpha:1@beta", {"alpha": 1, "beta": 2})]
)
def test_a01_a_bare_host_means_all_its_slots(include: str, expected: dict[str, int]) -> None:
    chosen = select(read_hostfile(HOSTFILES / "crlf.txt"), include, "")
    assert {host.name: host.slots for host in chosen} == expected
    assert list(expected) == [host.name for host in chosen]


def test_a03_the_faulty_line_is_shown() -> None:
    with pytest.raises(ClusterError, match=r"misspelt_second_line\.txt:2: 'beta slot=2': .*expected `HOST slots=N`"):
        read_hostfile(HOSTFILES / "misspelt_second_line.txt")


@pytest.mark.parametrize("name", ["comments_blank.txt", "crlf.txt", "no_final_newline.txt", "bom.txt"])
def test_a04_comments_blank_lines_and_line_ends(name: str) -> None:
    assert slots(name) == {"alpha": 2, "beta": 2}


@pytest.mark.parametrize(
    "name",
    [
        *("junk_suffix.txt", "comma_suffix.txt", "zero_slots.txt", "bracket_range.txt", "host_port.txt", "duplicate.txt", "duplicate_case.txt"),
        *("no_slots.txt", "spaced_equals.txt", "upper_key.txt", "only_comments.txt"),
    ],
)
def test_a05_sloppy_lines_are_refused_with_a_fix(name: str) -> None:
    with pytest.raises(ClusterError) as caught:
        read_hostfile(HOSTFILES / name)
    assert all(problem.file and problem.fix for problem in caught.value.problems)


def test_a05_two_names_of_one_machine_are_warned_about() -> None:
    assert same_machine_warnings(read_hostfile(HOSTFILES / "duplicate_fqdn.txt"))
    assert not same_machine_warnings(read_hostfile(HOSTFILES / "crlf.txt"))


def test_a06_a_hostfile_that_is_not_there_stops_the_run() -> None:
    with pytest.raises(ClusterError, match="can't read this hostfile"):
        read_hostfile(HOSTFILES / "mistyped")


def test_a07_users_are_kept_and_filters_agree() -> None:
    hosts = read_hostfile(HOSTFILES / "user_at.txt")
    assert [(host.user, host.name) for host in hosts] == [("trainer", "alpha"), ("other", "beta")]
    assert [host.name for host in select(hosts, "trainer@alpha:0", "")] == ["alpha"]


def test_a13_env_file() -> None:
    assert read_env_file(CASES / "envfiles" / "blank_and_comment.env") == {"A": "1", "B": "2"}


@pytest.mark.parametrize(("text", "value"), [("1e-5", 1e-5), ("5e-4", 5e-4), ("1E-5", 1e-5)])
def test_b01_exponents_are_numbers(text: str, value: float, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(MINIMAL + f"optimizer: {{learning_rate: {text}}}\n")
    resolved = read_and_resolve(Options(spec_path=tmp_path / "spec.yaml")).resolved
    assert resolved.spec.optimizer.learning_rate == value


def found(text: str, tmp_path: Path) -> str:
    (tmp_path / "spec.yaml").write_text(text)
    return "\n".join(str(problem) for problem in check_spec(Options(spec_path=tmp_path / "spec.yaml")))


def test_b02_a_quoted_boolean_is_text(tmp_path: Path) -> None:
    assert "a boolean) expected, got text 'false'" in found(MINIMAL + 'train: {gradient_checkpointing: "false"}\n', tmp_path)


def test_b04_unknown_keys_all_at_once(tmp_path: Path) -> None:
    problems = found((CASES / "yaml" / "unknown_keys.yaml").read_text(), tmp_path)
    for line in (":2: training.quantizaton", ":3: training.gradient_checkpoint", ":4: learning_rate"):
        assert line in problems
    assert "`train.gradient_checkpointing`" in problems and "`optimizer.learning_rate`" in problems


def test_b05_duplicate_key_with_both_lines(tmp_path: Path) -> None:
    assert "given twice, on lines 1 and 3" in found((CASES / "yaml" / "duplicate_key.yaml").read_text(), tmp_path)


def test_b07_batch_sizes_in_overrides_are_refused_with_the_nearest(tmp_path: Path) -> None:
    overrides = "zero: {stage: 1, overrides: {train_batch_size: 10, train_micro_batch_size_per_gpu: 4}}\ncluster: {slots: 2}\n"
    problems = found(MINIMAL + overrides, tmp_path)
    assert "10 is not a multiple of 8" in problems and "8 or 16" in problems


def test_b14_two_precisions(tmp_path: Path) -> None:
    problems = found(MINIMAL + "train: {fp16: true, bf16: true}\n", tmp_path)
    assert "train.fp16" in problems and "train.bf16" in problems and "train.precision" in problems
