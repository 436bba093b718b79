"""References to the environment in a spec, secrets in one, and sizes and durations with their units, from the file to the resolved spec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftcore.spec.document import Document, read_document
from ftcore.spec.errors import Problem, SpecError
from ftcore.spec.resolved import ResolvedSpec
from ftcore.spec.variables import Variables
from launcher.resolve import Options, check_spec, read_and_resolve
from launcher.secret_forms import secret_in

MODEL = "model: {model_name_or_path: 'builtin:tiny-llama'}\n"
DATA = "data: {train: {path: 'builtin:extraction/train'}}\n"
TOKEN = "hf_" + "aBcDeFgHiJ" * 3 + "kLmN"


def read(text: str, environment: dict[str, str], name: str = "spec.yaml") -> Document:
    return read_document(text.encode(), name, Variables(environment=environment, is_secret=lambda name, value: "TOKEN" in name))


def problems_of(folder: Path, text: str, *sets: str, name: str = "spec.yaml") -> list[Problem]:
    (folder / name).write_text(text, encoding="utf-8")
    return check_spec(Options(spec_path=folder / name, sets=sets))


def resolved_of(folder: Path, text: str, *sets: str, name: str = "spec.yaml") -> ResolvedSpec:
    (folder / name).write_text(text, encoding="utf-8")
    return read_and_resolve(Options(spec_path=folder / name, sets=sets)).resolved


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: ${N}", 12),
        ('a: "${N}"', "12"),
        ("a: '${N}'", "12"),
        ("a: ${N}x", "12x"),
        ("a: ${N}${N}", "1212"),
        ("a: ${NOT_SET:-3}", 3),
        ("a: ${NOT_SET:-some text}", "some text"),
        ("a: ${NOT_SET:-}", None),
        ("a: '${NOT_SET:-}'", ""),
        ("a: ${N:-7}", 12),
        ("a: ${EMPTY:-7}", 7),
        ("a: ${FLAG}", True),
        ("a: /data/${NAME}/x", "/data/me/x"),
        ("a: $${N}", "${N}"),
        ("a: $N", "$N"),
        ("a: cost $5", "cost $5"),
        ("a: ${HOLDS}", "${N}"),
        ("a: [x, '${N}']", ["x", "12"]),
        ("${N}: 1\na: 2", 2),
    ],
)
def test_a_reference_is_replaced(text: str, value: object) -> None:
    document = read(text, {"N": "12", "EMPTY": "", "FLAG": "true", "NAME": "me", "HOLDS": "${N}"})
    assert not document.problems and not document.unset
    assert document.data["a"] == value and type(document.data["a"]) is type(value)


def test_in_json_a_reference_is_always_text() -> None:
    document = read('{"a": "${N}", "b": ["${N}"], "c": "$${N}"}', {"N": "12"}, "spec.json")
    assert document.data == {"a": "12", "b": ["12"], "c": "${N}"} and document.variables == {("a",): ["${N}"], ("b",): ["${N}"]}


@pytest.mark.parametrize(
    ("value", "told", "fix"),
    [
        ("${X}", "X is not set", "export X=..."),
        ("${EMPTY}", "EMPTY is empty", "${EMPTY:-...}"),
        ("${X${Y}}", "begins no reference", "`$${`"),
        ("${X", "begins no reference", "${NAME}"),
        ("${1X}", "begins no reference", "${NAME}"),
        ("${}", "begins no reference", "${NAME}"),
        ("${X:=3}", "begins no reference", "${NAME:-default}"),
        ("${HF_TOKEN}", "HF_TOKEN looks like a secret", "--env-file"),
        ("${HF_TOKEN:-x}", "HF_TOKEN looks like a secret", "--env-file"),
    ],
)
def test_a_reference_that_leads_nowhere(value: str, told: str, fix: str) -> None:
    for name, text in (("spec.yaml", f"b: 1\na: {value}"), ("spec.json", f'{{"b": 1,\n"a": "{value}"}}')):
        document = read(text, {"EMPTY": "", "HF_TOKEN": "very"}, name)
        problem = document.unset["a",][0]
        assert document.data["a"] is None and problem.line == 2 and told in problem.what and fix in problem.fix and "very" not in str(problem)


def test_inside_brackets_a_reference_needs_quotes() -> None:
    (problem,) = read("a: [${X}]", {"X": "1"}).problems
    assert "needs quotes" in problem.fix


def test_values_that_no_file_can_hold_are_refused() -> None:
    (problem,) = read("a: ${X}", {"X": "\udcff"}).problems
    assert "surrogate" in problem.what


def test_a_spec_with_references_resolves_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"STEPS": "7", "TARGETS": "q_proj", "ROOT": "builtin:extraction"}.items():
        monkeypatch.setenv(name, value)
    text = MODEL + "data:\n  train:\n    path: ${ROOT}/train\ntrain:\n  max_steps: ${STEPS}\nmethod: {type: lora, target_modules: ['${TARGETS}', v_proj]}\n"
    resolved = resolved_of(tmp_path, text)
    assert resolved.spec.train.max_steps == 7 and resolved.spec.data.train.path == "builtin:extraction/train"
    assert resolved.sources["train.max_steps"].endswith("spec.yaml:6 ${STEPS}") and resolved.sources["data.train.path"].endswith("spec.yaml:4 ${ROOT}")
    assert resolved.sources["method.target_modules"].endswith("spec.yaml:7 ${TARGETS}")


def test_all_unset_variables_are_told_once_and_nothing_else_of_their_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FT_A", "FT_B", "FT_C", "FT_D"):
        monkeypatch.delenv(name, raising=False)
    text = "model: {model_name_or_path: '${FT_A}/${FT_B}'}\n" + DATA + "cluster:\n  hosts: ${FT_C}\ntrain:\n  max_steps: ${FT_D}\n  seeed: ${FT_A}\n"
    problems = problems_of(tmp_path, text)
    assert [(problem.line, problem.where) for problem in problems] == [
        *(
            (1, "model.model_name_or_path"),
            (1, "model.model_name_or_path"),
            (4, "cluster.hosts"),
            (6, "train.max_steps"),
            (7, "train.seeed"),
            (7, "train.seeed"),
        )
    ]
    assert all(name in problem.what for name, problem in zip(("FT_A", "FT_B", "FT_C", "FT_D", "FT_A", "seeed"), problems, strict=True))


def test_an_option_in_its_place_needs_no_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FT_A", raising=False)
    text = MODEL + DATA + "train: {max_steps: '${FT_A}'}\n"
    assert len(problems_of(tmp_path, text)) == 1
    assert problems_of(tmp_path, text, "train.max_steps=3") == [] == problems_of(tmp_path, text, "train.num_train_epochs=1")


QUANTITIES = {
    "cluster": {
        "heartbeat_timeout": "10s",
        "start_timeout": "2h30m",
        "stall_timeout": "24:00:00",
        "preempt_grace": "15m",
        "scheduler": {"signal_lead": "10m", "requeue_backoff": "90"},
    },
    "hardware": {"memory": "24 GiB", "host_memory": "1.5 TB"},
}


@pytest.mark.parametrize("name", ["spec.yaml", "spec.json"])
def test_units_become_plain_numbers(tmp_path: Path, name: str) -> None:  # H12
    spec = {"model": {"model_name_or_path": "builtin:tiny-llama"}, "data": {"train": {"path": "builtin:extraction/train"}}, **QUANTITIES}
    resolved = resolved_of(tmp_path, json.dumps(spec), name=name).spec
    cluster, scheduler, hardware = resolved.cluster, resolved.cluster.scheduler, resolved.hardware
    assert (cluster.heartbeat_timeout, cluster.start_timeout, cluster.stall_timeout, cluster.preempt_grace) == (10.0, 9000.0, 86400.0, 900.0)
    assert (scheduler.signal_lead, scheduler.requeue_backoff) == (600, 90.0) and type(scheduler.signal_lead) is int
    assert (hardware.memory, hardware.host_memory) == (24 * 2**30, 1_500_000_000_000)


def test_units_without_quotes_and_by_set(tmp_path: Path) -> None:  # B01, H12
    text = MODEL + DATA + "cluster:\n  stall_timeout: 24:00:00\n  start_timeout: 90\nhardware: {memory: 80 GB}\n"
    resolved = resolved_of(tmp_path, text, "cluster.start_timeout=1-12:00:00", "hardware.host_memory=2TiB").spec
    assert (resolved.cluster.stall_timeout, resolved.cluster.start_timeout) == (86400.0, 129600.0)
    assert (resolved.hardware.memory, resolved.hardware.host_memory) == (80 * 10**9, 2**41)


@pytest.mark.parametrize(
    ("key", "value", "told", "fix"),
    [
        ("cluster.stall_timeout", "2 hours", "'2 hours' is no duration", "write `2h`"),
        ("cluster.stall_timeout", "true", "a duration expected, got boolean true", "`2h30m`"),
        ("cluster.heartbeat_timeout", "2h", "number 7200.0 is out of range", "at most 3600 seconds"),
        ("cluster.scheduler.signal_lead", "1.5", "a duration in whole seconds expected", "`90s`"),
        ("cluster.scheduler.signal_lead", "'0.5'", "a duration in whole seconds expected", "`90s`"),
        ("hardware.memory", "24 gib", "'24 gib' is no size", "write `24 GiB`"),
        ("hardware.memory", "1 kB", "number 1000 is out of range", "at least 1048576 bytes"),
        ("hardware.memory", "1e9", "a size expected", "bytes alone"),
    ],
)
def test_wrong_units(tmp_path: Path, key: str, value: str, told: str, fix: str) -> None:
    (problem,) = problems_of(tmp_path, MODEL + DATA, f"{key}={value}")
    assert problem.where == key and problem.file == "--set" and told in problem.what and fix in problem.fix


SECRETS = [
    *(TOKEN, "ghp_" + "a1B2" * 9, "github_pat_" + "11AB" * 12, "glpat-" + "aB3-" * 5, "xoxb-123456789012-abc", "AKIA" + "ABCD2345" * 2),
    *("HF_TOKEN=abc123", "WANDB_API_KEY='abc123'", "password=hunter2", "ProxyCommand=sshpass -p hunter2 ssh h", "api_key=abcd1234"),
    *("sk-proj-abcdefghijKLMNOP1234", "sk-ant-api03-" + "aB3dE6gH9" * 4, "https://me:pw@host/data.jsonl", "-----BEGIN RSA PRIVATE KEY-----"),
]
NAMES = [
    *("hf_internal_testing/tiny-random-gpt2", "hf-internal-testing/llama", "sk-learn-docs-2024-instruct.jsonl", "runs/sk-small-model-with-a-long-name-1234"),
    *("HF_TOKEN=$HF_TOKEN", "HF_TOKEN=<yours>", "HF_TOKEN=...", "MAX_TOKENS=512", "key=value1", "HF_TOKEN, WANDB_API_KEY", "password: true"),
    *("0123456789abcdef0123456789abcdef01234567", "https://host:8080/data.jsonl", "/mnt/akia/ASIA-2024-news.jsonl", "s3://bucket/key", "glpat", "ghp_short"),
]


@pytest.mark.parametrize("text", SECRETS)
def test_what_looks_like_a_secret(text: str) -> None:
    assert secret_in(text) and secret_in(f"a {text} b") and secret_in(f"/x/{text}")


def test_a_secret_behind_its_name_and_a_colon() -> None:
    assert secret_in("# password: hunter2") and secret_in("a: b\n# HF_TOKEN: abc123\nc: d")
    assert not secret_in("# HF_TOKEN: comes from the shell") and not secret_in("# a token: one byte of text")


@pytest.mark.parametrize("text", NAMES)
def test_what_is_a_name(text: str) -> None:
    assert not secret_in(text)


@pytest.mark.parametrize(
    ("text", "where", "line"),
    [
        (f"model: {{model_name_or_path: m, revision: {TOKEN}}}\n{DATA}", "model.revision", 1),
        (f"{MODEL}{DATA}method:\n  type: lora\n  target_modules:\n  - q_proj\n  - {TOKEN}\n", "method.target_modules[1]", 7),
        (f"{MODEL}{DATA}zero:\n  overrides: {{x: {TOKEN}}}\n", "zero.overrides.x", 4),
        (f"{MODEL}{DATA}cluster: {{ssh_options: '{TOKEN}'}}\n", "cluster.ssh_options", 3),
        (f"{MODEL}# HF_TOKEN: {TOKEN}\n{DATA}", "", 2),
    ],
)
def test_no_secret_gets_into_a_run_folder(tmp_path: Path, text: str, where: str, line: int) -> None:
    problems = problems_of(tmp_path, text)
    assert TOKEN not in str(problems)
    assert any((problem.where, problem.line) == (where, line) and "Hugging Face token" in problem.what and "--env-file" in problem.fix for problem in problems)


def test_a_secret_on_the_command_line_is_refused_and_not_repeated(tmp_path: Path) -> None:
    problems = problems_of(tmp_path, MODEL + DATA, f"model.revision={TOKEN}")
    assert [(problem.where, problem.file) for problem in problems] == [("model.revision", "--set")] and TOKEN not in str(problems)


def test_a_secret_behind_a_reference_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FT_PLACE", TOKEN)
    monkeypatch.setenv("MY_API_KEY", "plain")
    (tmp_path / "spec.yaml").write_text(
        MODEL.replace("}", ", revision: '${FT_PLACE}'}") + DATA + "logging:\n  logging_steps: ${MY_API_KEY}\n", encoding="utf-8"
    )
    with pytest.raises(SpecError) as caught:
        read_and_resolve(Options(spec_path=tmp_path / "spec.yaml"))
    assert {problem.where for problem in caught.value.problems} == {"model.revision", "logging.logging_steps"} and TOKEN not in str(caught.value)
