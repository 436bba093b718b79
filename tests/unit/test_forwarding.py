"""Which variables reach other hosts, which hold secrets, and that no value is ever shown (cases A16, A19)."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcore.spec.resolved import Host
from launcher.environment import SET_BY_LAUNCHER
from launcher.forwarding import NAMES, PREFIXES, forwarded, host_environment, is_pattern, render_note
from launcher.variable_names import LATE, PER_HOST, is_secret, refusal

SHELL = {
    "PATH": "/bin",
    "HOME": "/root",
    "DISPLAY": ":0",
    "SSH_AUTH_SOCK": "/s",
    "SLURM_JOB_ID": "7",
    "PWD": "/x",
    "NCCL_DEBUG": "INFO",
    "PYTHONPATH": "/x",
    "HF_TOKEN": "hunter2",
    "WANDB_API_KEY": "hunter3",
    "WANDB_BASE_URL": "https://w",
    "MY_FLAG": "1",
    "MY_PORT": "2",
    "MLFLOW_TRACKING_URI": "https://me:hunter4@host/",
    "CUDA_VISIBLE_DEVICES": "0",
    "RANK": "3",
    "FTLAUNCH_LAUNCH_ID": "i",
    "https_proxy": "http://p:1",
}


def test_what_is_forwarded() -> None:
    those = forwarded(SHELL, {"A": "1", "NCCL_DEBUG": "WARN", "RANK": "9"}, ("MY_F*", "MY_NOTHING"))
    assert those.plain_names == ("A", "MY_FLAG", "NCCL_DEBUG", "PYTHONPATH", "WANDB_BASE_URL", "https_proxy")
    assert those.secret_names == ("HF_TOKEN", "MLFLOW_TRACKING_URI", "WANDB_API_KEY")
    assert those.values["NCCL_DEBUG"] == "WARN" and those.values["PYTHONPATH"] == "/x" and those.values["WANDB_API_KEY"] == "hunter3"  # A16, A19
    assert set(those.values) == {*those.plain_names, *those.secret_names}


def test_names_are_shown_and_values_never() -> None:  # A19
    those = forwarded(SHELL, {"MY_SECRET": "hunter5"})
    for text in (render_note(those), repr(those), str(those)):
        assert "hunter" not in text and "WANDB_API_KEY" in text and "NCCL_DEBUG" in text
    assert render_note(those).startswith("environment for other hosts: NCCL_DEBUG, PYTHONPATH, ")
    assert "nothing is set" in render_note(forwarded({"PATH": "/bin"}, {}))
    assert "no plain variable; secret, over a pipe like the others: HF_TOKEN" in render_note(forwarded({"HF_TOKEN": "x"}, {}))


def test_a_variable_of_one_host_is_forwarded_only_by_its_name() -> None:
    assert forwarded({"CUDA_VISIBLE_DEVICES": "1", "MASTER_PORT": "1"}, {}, ("CUDA_*", "MASTER_*", "*")).values == {}
    assert forwarded({"CUDA_VISIBLE_DEVICES": "1"}, {}, ("CUDA_VISIBLE_DEVICES",)).values == {"CUDA_VISIBLE_DEVICES": "1"}
    assert forwarded({}, {"CUDA_VISIBLE_DEVICES": "1"}).values == {"CUDA_VISIBLE_DEVICES": "1"}


# Sorted: the order of a set is another one in each process, and so would be the examples.
DRAWN = sorted({*SET_BY_LAUNCHER, *LATE, *PER_HOST, *NAMES, *(f"{prefix}X" for prefix in PREFIXES), "PATH", "Z"})


@given(st.dictionaries(st.sampled_from(DRAWN), st.text()))
def test_what_belongs_to_one_rank_never_leaves(base: dict[str, str]) -> None:
    values = forwarded(base, {}, ("*",)).values
    assert not set(values) & (SET_BY_LAUNCHER | LATE | PER_HOST) and all(values[name] == base[name] for name in values)
    assert set(forwarded(base, {}).values) == {name for name in base if name in NAMES or name.startswith(tuple(PREFIXES))} - SET_BY_LAUNCHER - PER_HOST


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "OPENAI_APIKEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "DB_PASSWORD",
        "MYSQL_PWD",
        "PGPASSFILE_PASSWD",
        "NPM_AUTH",
        "CLEARML_API_SECRET_KEY",
        "hf_token",
        "SESSION_COOKIE",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "SENTRY_DSN",
        "HTTP_AUTHORIZATION",
        "TOKENIZERS_SECRET",
        "MAX_TOKENS_KEY",
        "DB_PASS",
        "SSH_KEYS",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "MAX_NEW_TOKENS",
        "NUM_TOKENS",
        "PWD",
        "OLDPWD",
        "NCCL_DEBUG",
        "OMP_NUM_THREADS",
        "PATH",
        "KEYBOARD_LAYOUT",
        "NUM_PASSES",
        "AUTHOR",
    ],
)
def test_names_that_only_look_so(name: str) -> None:
    assert not is_secret(name, "/some/value")


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        ("https://me:word@host/x", True),
        ("http://:word@proxy:3128", True),
        ("postgres+psycopg://u:p@h/db", True),
        ("http://proxy:3128", False),
        ("http://me@proxy:3128", False),
        ("http://host:80/a@b", False),
        ("hf_" + "a" * 30, True),
        ("hf_cache", False),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", True),
        ("Bearer abcdefghij", True),
        ("a:b@c", False),
    ],
)
def test_values_that_are_secrets(value: str, secret: bool) -> None:
    assert is_secret("A_URL", value) == secret


def test_what_a_file_may_not_set() -> None:
    for name, told in (("RANK", "for each rank"), ("MASTER_ADDR", "for each launch"), ("A_TOKEN", "looks like a secret")):
        reason, fix = refusal(name) or ("", "")
        assert told in reason and fix
    assert refusal("NCCL_DEBUG", "INFO") is None


def test_whose_value_wins() -> None:
    host = Host(name="a", slots=1, environment={"A": "host"})
    inherited = {"A": "i", "B": "i", "C": "i", "D": "i", "RANK": "1"}
    made = host_environment(inherited, {"A": "e", "B": "e", "C": "e"}, {"A": "g", "B": "g"}, host)
    assert made == {"A": "host", "B": "g", "C": "e", "D": "i"}


@pytest.mark.parametrize(
    ("text", "right"), [("A", True), ("A_*", True), ("_a1", True), ("*", False), ("A*B", False), ("A-B", False), ("A=1", False), ("", False), ("A?", False)]
)
def test_patterns(text: str, right: bool) -> None:
    assert is_pattern(text) == right


def test_long_values_take_no_time() -> None:
    # On the processor: what else the machine does is not counted.
    began = time.thread_time()
    for value in ("x" * 300_000, "a://" + ":" * 300_000, "a://u:" + "p" * 300_000, "a+" * 150_000):
        is_secret("A_NAME", value)
    assert time.thread_time() - began < 2


@pytest.mark.parametrize("name", ["GH_PAT", "SSHPASS", "MYPASS", "MY_JWT", "OPENAI_KEY1", "COMET_API_KEY2", "DATABASE_URL"])
def test_more_names_of_secrets(name: str) -> None:
    assert is_secret(name)


def test_a_proxy_with_a_user_is_a_secret() -> None:
    assert is_secret("http_proxy", "u:PW@h:3128") and is_secret("ALL_PROXY", "http://TOKEN@h") and not is_secret("https_proxy", "http://h:3128")
