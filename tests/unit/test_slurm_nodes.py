"""Slurm's compressed lists, read without scontrol (case H01)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcore.spec.errors import ClusterError
from ftcore.spec.resolved import Host
from launcher.slurm_nodes import expand_nodes, job_hosts

TABLE = Path(__file__).resolve().parents[1] / "cases" / "slurm" / "nodelists.tsv"
ROWS = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(("text", "first", "count", "names"), ROWS, ids=[row[0] for row in ROWS])
def test_node_lists(text: str, first: str, count: str, names: str) -> None:  # H01
    nodes = expand_nodes(text)
    assert nodes == tuple(names.split()) and nodes[0] == first and len(nodes) == int(count)


@pytest.mark.parametrize(
    ("text", "names"),
    [("n[8-11]", "n8 n9 n10 n11"), ("n[098-101]", "n098 n099 n100 n101"), ("n[001-2]", "n001 n002"), (" a.b_c-d ", "a.b_c-d"), ("a[1]b[2]", "a1b2")],
)
def test_zeros_and_odd_names(text: str, names: str) -> None:
    assert expand_nodes(text) == tuple(names.split())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "names no node"),
        ("(null)", "names no node"),
        ("None assigned", "names no node"),
        ("n[1-2", "can't be read"),
        ("n1]", "can't be read"),
        ("n[1]]", "can't be read"),
        ("n[[1]]", "can't be read"),
        ("a,,b", "can't be read"),
        ("a,", "can't be read"),
        (",a", "can't be read"),
        ("n[1-2]-ib", "can't be read"),
        ("n[]", "no number"),
        ("n[1,]", "no number"),
        ("n[3-1]", "'3-1'"),
        ("n[a-c]", "'a-c'"),
        ("n[1-5:2]", "'1-5:2'"),
        ("n[1, 2]", "' 2'"),
        ("n[-1]", "'-1'"),
        ("n[\u0661-\u0662]", "no number"),
        ("n{1-2}", "no host name"),
        ("a b", "no host name"),
        ("a;b", "no host name"),
        ("$(x)", "no host name"),
        ("-oProxyCommand=x", "no host name"),
        ("::1", "no host name"),
        ("a,b,A", "2 times"),
        ("n[1,1]", "2 times"),
        ("n[0-999999999]", "more than"),
        ("n[0-999][0-999][0-999]", "more than"),
        ("n" + "[0-999999999999999999]" * 300, "more than"),
        ("n[" + "9" * 19 + "]", "no number"),
    ],
)
def test_what_is_not_understood_is_refused_whole(text: str, told: str) -> None:  # H01
    with pytest.raises(ClusterError) as caught:
        expand_nodes(text)
    assert told in caught.value.problems[0].what and caught.value.problems[0].fix


def test_the_hosts_of_a_job() -> None:
    assert job_hosts("n[1-2]", (4,)) == (Host(name="n1", slots=4), Host(name="n2", slots=4))
    assert job_hosts("n[1-2]", (4, 2)) == (Host(name="n1", slots=4), Host(name="n2", slots=2))
    for slots, told in (((1, 2, 3), "counts for 3"), ((4, 0), "not 0"), ((4096,), "not 4096"), ((), "counts for 0")):
        with pytest.raises(ClusterError, match=told):
            job_hosts("n[1-2]", slots)


_WIDTHS = st.tuples(st.integers(0, 120), st.integers(0, 6), st.integers(0, 4))
_RANGES = st.lists(_WIDTHS.map(lambda each: f"{each[0]:0{each[2]}d}" + (f"-{each[0] + each[1]:0{each[2]}d}" if each[1] else "")), min_size=1, max_size=3)
_ITEMS = st.lists(st.tuples(st.from_regex(r"[a-z][a-z0-9]{0,2}(-[a-z])?", fullmatch=True), st.lists(_RANGES, max_size=2)), min_size=1, max_size=3)


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="scontrol is not installed")
@settings(max_examples=60, deadline=None)
@given(_ITEMS)
def test_as_scontrol_says(items: list[tuple[str, list[list[str]]]]) -> None:
    text = ",".join(name + "".join(f"[{','.join(ranges)}]" for ranges in groups) for name, groups in items)
    argv = ["scontrol", "show", "hostnames", text]
    # It asks no daemon for this, but wants a configuration.
    ended = subprocess.run(argv, env={**os.environ, "SLURM_CONF": str(TABLE.with_name("slurm.conf"))}, capture_output=True, text=True, check=True)
    names = tuple(ended.stdout.split())
    if len(set(names)) < len(names):
        with pytest.raises(ClusterError, match="times"):
            expand_nodes(text)
    else:
        assert expand_nodes(text) == names
