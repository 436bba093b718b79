"""Hostfiles: what is read, and that every mistake is refused with file, line, text and fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcore.spec.errors import ClusterError
from ftcore.spec.resolved import Host
from launcher.hostfile import parse_hostfile, read_hostfile, render_hostfile, same_machine_warnings
from launcher.variable_names import is_secret

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "cases" / "hostfiles"


@pytest.mark.parametrize("name", ["comments_blank", "crlf", "no_final_newline", "bom"])
def test_accepted_forms(name: str) -> None:
    assert read_hostfile(CASES / f"{name}.txt") == (Host(name="alpha", slots=2), Host(name="beta", slots=2))


def test_the_projects_own_hostfiles() -> None:
    assert read_hostfile(ROOT / "hostfiles/local") == (Host(name="localhost", slots=2),)
    assert read_hostfile(ROOT / "hostfiles/2node") == (Host(name="node1", slots=4), Host(name="node2", slots=4))
    assert read_hostfile(ROOT / "hostfiles/example")[2] == Host(
        name="node3", slots=2, user="trainer", port=2222, interface="eth1", environment={"NCCL_DEBUG": "WARN"}
    )


def test_users_are_kept() -> None:
    assert read_hostfile(CASES / "user_at.txt") == (Host(name="alpha", slots=2, user="trainer"), Host(name="beta", slots=1, user="other"))


@pytest.mark.parametrize(
    ("name", "line", "text", "fix"),
    [
        ("misspelt_second_line", 2, "'beta slot=2'", "write `beta slots=2`"),
        ("junk_suffix", 1, "'alpha slots=4x'", "write `alpha slots=4`"),
        ("comma_suffix", 1, "'alpha slots=4,'", "write `alpha slots=4`"),
        ("zero_slots", 1, "'alpha slots=0'", "slots=1 or more"),
        ("host_port", 1, "'alpha:2222 slots=2'", "`alpha slots=N port=2222`"),
        ("bracket_range", 1, "'node[01-02] slots=8'", "a line of its own"),
        ("duplicate", 2, "already on line 1", "one line"),
        ("duplicate_case", 2, "already on line 1", "one line"),
        ("no_slots", 1, "'alpha'", "write `alpha slots=N`"),
        ("spaced_equals", 1, "'alpha slots = 4'", "write `alpha slots=4`"),
        ("upper_key", 1, "'alpha SLOTS=4'", "write `alpha slots=4`"),
        ("only_comments", None, "names no host", "`localhost slots=2`"),
    ],
)
def test_refused_forms(name: str, line: int | None, text: str, fix: str) -> None:
    with pytest.raises(ClusterError) as caught:
        read_hostfile(CASES / f"{name}.txt")
    problem = caught.value.problems[0]
    assert (problem.file, problem.line) == (str(CASES / f"{name}.txt"), line)
    assert text in problem.what and fix in problem.fix and caught.value.exit_status == 3
    assert line is None or "already" in text or "`HOST slots=N`" in problem.what


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("alpha slots=2 max_slots=4", "'max_slots=4' follows the slots"),
        ("alpha slots=2000", "more than any host has"),
        ("alpha slots=99999", "is not `slots=N`"),
        ("alpha slots=" + "9" * 5000, "is not `slots=N`"),
        ("alpha slots=-1", "is not `slots=N`"),
        ("alpha slots=0x4", "'0x4' is no number"),
        ("alpha slots=0o7 port=22", "'0o7' is no number"),
        ("alpha slots=0,", "a host with no slots"),
        ("alpha slots=2.5", "is not `slots=N`"),
        ("alpha slots=\u0662", "is not `slots=N`"),
        ("alpha,beta slots=2", "holds a comma"),
        ("[::1]:22 slots=2", "has brackets"),
        ("fe80::1%eth0 slots=2", "interface"),
        ("10.0.0.256 slots=2", "no IPv4 address"),
        ("-oProxyCommand=x slots=2", "no host name"),
        ("alpha- slots=2", "no host name"),
        ("al$(x)pha slots=2", "no host name"),
        ("a..b slots=2", "no host name"),
        ("x" * 64 + " slots=2", "no host name"),
        (".".join(["x" * 60] * 5) + " slots=2", "no host name"),
        ("@alpha slots=2", "no user name"),
        ("-l@alpha slots=2", "no user name"),
        ("a;b@alpha slots=2", "no user name"),
        ("$(x)@alpha slots=2", "no user name"),
        ("a;b slots=2", "no host name"),
        ("'a' slots=2", "no host name"),
        ("`x` slots=2", "no host name"),
        ("a|b slots=2", "no host name"),
        ("alpha slots=2 port=0", "'port=0' is no port"),
        ("alpha slots=2 port=65536", "is no port"),
        ("alpha slots=2 port=22;reboot", "is no port"),
        ("alpha slots=2 port=-oProxyCommand=x", "is no port"),
        ("alpha slots=2 port=", "is no port"),
        ("alpha slots=2 port", "'port' follows the slots"),
        ("alpha slots=2 Port=22", "'Port=22' follows the slots"),
        ("alpha slots=2 port=22 port=22", "`port` is given twice"),
        ("alpha slots=2 interface=", "no network interface"),
        ("alpha slots=2 interface=-x", "no network interface"),
        ("alpha slots=2 interface=eth0,eth1", "no network interface"),
        ("alpha slots=2 interface=averylonginterfacename", "no network interface"),
        ("alpha slots=2 env.A=1 env.A=2", "`env.A` is given twice"),
        ("alpha slots=2 env.2A=1", "'env.2A' follows the slots"),
        ("alpha slots=2 env.A", "'env.A' follows the slots"),
        ("alpha slots=2 env.=1", "'env.' follows the slots"),
        ("alpha slots=2 env.RANK=1", "RANK is set by ftlaunch for each rank"),
        ("alpha slots=2 env.MASTER_PORT=1", "MASTER_PORT is set by ftlaunch for each launch"),
        ("alpha slots=2 env.A=x\0y", "A holds a NUL"),
        ("alpha slots=2 env.A='x", "a quote is not closed"),
        ("alpha slots=2 junk", "'junk' follows the slots"),
        ("user@ slots=2", "no host name"),
        ("slots=2", "no host name"),
    ],
)
def test_refused_lines(line: str, reason: str) -> None:
    with pytest.raises(ClusterError, match="hosts:1: ") as caught:
        parse_hostfile(line, "hosts")
    assert reason in caught.value.problems[0].what and caught.value.problems[0].fix


def test_what_may_follow_the_slots() -> None:
    line = """trainer@node_1 slots=4 port=2222 interface=ib0.8001 env.A='x  # y' env.B="a'b" env.C=  # a note, with 'quotes"""
    (host,) = parse_hostfile(line, "h")
    assert host == Host(name="node_1", user="trainer", slots=4, port=2222, interface="ib0.8001", environment={"A": "x  # y", "B": "a'b", "C": ""})


def test_a_secret_is_refused_and_not_shown() -> None:
    for line in (
        "a slots=2 env.HF_TOKEN=hunter2",
        "a slots=2 env.URL=https://me:hunter2@host/",
        "a slot=2 env.A=hunter2",
        "a slots=2 env.A=hunter2 env.2=hunter2",
    ):
        with pytest.raises(ClusterError) as caught:
            parse_hostfile(line, "h")
        assert "hunter2" not in str(caught.value) and caught.value.problems[0].fix
    with pytest.raises(ClusterError, match="HF_TOKEN looks like a secret"):
        parse_hostfile("a slots=2 env.HF_TOKEN=x", "h")


def test_addresses_are_accepted() -> None:
    names = ["192.0.2.7", "2001:db8::7", "node_1.lab.example", "9lives"]
    assert [host.name for host in parse_hostfile("".join(f"{name} slots=1\n" for name in names), "h")] == names


def test_all_mistakes_come_at_once() -> None:
    with pytest.raises(ClusterError) as caught:
        parse_hostfile("a slots=x\n# fine\nb slots=2\nb slots=2\r\nc\rd slots=0", "h")
    assert [problem.line for problem in caught.value.problems] == [1, 4, 5, 6]
    with pytest.raises(ClusterError) as caught:
        parse_hostfile("-x@a;b slots=2 port=x junk\nfine slots=1 port=y", "h")
    assert [(problem.line, problem.what.split(": ", 1)[1][:7]) for problem in caught.value.problems] == [
        *((1, "'a;b' i"), (1, "'-x' is"), (1, "'port=x"), (1, "'junk' ")),
        (2, "'port=y"),
    ]


def test_a_hostfile_that_can_not_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "utf16").write_text("alpha slots=2\n", encoding="utf-16")
    for name, what in (("missing", "No such file"), (".", "Is a directory"), ("utf16", "not UTF-8")):
        with pytest.raises(ClusterError, match=what) as caught:
            read_hostfile(tmp_path / name)
        assert caught.value.problems[0].file == str(tmp_path / name)


def test_two_names_of_one_machine_are_warned_about() -> None:
    (warning,) = same_machine_warnings(read_hostfile(CASES / "duplicate_fqdn.txt"))
    assert "alpha and alpha.lab.example" in warning
    assert same_machine_warnings(parse_hostfile("alpha.a.example slots=1\nalpha.b.example slots=1\nbeta slots=1", "h")) == ()


def test_rendered_hostfiles_read_back() -> None:
    hosts = (Host(name="alpha", slots=2, user="trainer"), Host(name="beta", slots=4))
    assert parse_hostfile(render_hostfile(hosts), "h") == hosts
    assert render_hostfile((Host(name="alpha", slots=2, slot_ids=(0, 2)),)) == "alpha slots=2  # slots 0,2 of this host\n"


_NAMES = st.one_of(st.from_regex(r"[a-z0-9_][a-z0-9_-]{0,8}[a-z](\.[a-z]{1,4})?", fullmatch=True), st.ip_addresses().map(str))
_VALUES = st.text(st.characters(blacklist_characters="\0\r\n", blacklist_categories=["Cs"]), max_size=12)
_ENVIRONMENTS = st.dictionaries(st.from_regex(r"X_[A-Z]{1,3}[0-9]{0,2}", fullmatch=True), _VALUES, max_size=3)
_HOSTS = st.builds(
    Host,
    name=_NAMES,
    slots=st.integers(1, 1024),
    user=st.from_regex(r"([a-z_][a-z0-9_.-]{0,5})?", fullmatch=True),
    port=st.integers(0, 65535),
    interface=st.from_regex(r"([a-z][a-z0-9.]{0,8})?", fullmatch=True),
    environment=_ENVIRONMENTS.filter(lambda values: not any(is_secret(name, value) for name, value in values.items())),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_HOSTS, min_size=1, max_size=4, unique_by=lambda host: host.name))
def test_any_hosts_survive_a_hostfile(hosts: list[Host]) -> None:
    assert parse_hostfile(render_hostfile(tuple(hosts)), "h") == tuple(hosts)
