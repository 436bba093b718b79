"""--include and --exclude: DeepSpeed's syntax with the right results."""

from __future__ import annotations

import pytest

from ftcore.spec.errors import SpecError
from ftcore.spec.resolved import Host
from launcher.filters import select

POOL = (Host(name="alpha", slots=2), Host(name="beta", slots=2))
USERS = (Host(name="alpha", slots=2, user="trainer"), Host(name="beta", slots=1, user="other"))
WORKERS = (Host(name="w0", slots=4), Host(name="w1", slots=4))


def shape(hosts: tuple[Host, ...]) -> list[tuple[str, int, tuple[int, ...]]]:
    return [(host.name, host.slots, host.slot_ids) for host in hosts]


@pytest.mark.parametrize(
    ("hosts", "include", "exclude", "left"),
    [
        (POOL, "", "", [("alpha", 2, ()), ("beta", 2, ())]),
        (POOL, "alpha", "", [("alpha", 2, ())]),
        (POOL, "beta@alpha", "", [("alpha", 2, ()), ("beta", 2, ())]),
        (POOL, "ALPHA", "", [("alpha", 2, ())]),
        (POOL, "", "alpha", [("beta", 2, ())]),
        (POOL, "", "alpha:0@beta:1", [("alpha", 1, (1,)), ("beta", 1, (0,))]),
        (WORKERS, "w0@w1:0,2", "", [("w0", 4, ()), ("w1", 2, (0, 2))]),
        (WORKERS, "w1:2,0", "", [("w1", 2, (0, 2))]),
        (USERS, "trainer@alpha:0", "", [("alpha", 1, (0,))]),
        (USERS, "trainer@alpha@other@beta", "", [("alpha", 2, ()), ("beta", 1, ())]),
        (USERS, "beta@trainer@alpha:1", "", [("alpha", 1, (1,)), ("beta", 1, ())]),
        ((Host(name="2001:db8::7", slots=2), Host(name="::1", slots=2)), "2001:db8::7:1", "", [("2001:db8::7", 1, (1,))]),
    ],
)
def test_selection(hosts: tuple[Host, ...], include: str, exclude: str, left: list[tuple[str, int, tuple[int, ...]]]) -> None:
    assert shape(select(hosts, include, exclude)) == left


def test_a_selection_of_a_selection() -> None:
    assert shape(select(select(WORKERS, "w0:1,3"), "", "w0:1")) == [("w0", 1, (3,))]


@pytest.mark.parametrize(
    ("include", "exclude", "reason"),
    [
        ("alpha", "beta", "both given"),
        ("gamma", "", "no host 'gamma' in the hostfile; it has alpha, beta"),
        ("alpha:2", "", "alpha has no slot 2; it has 0, 1"),
        ("alpha:0,0", "", "a slot is named twice"),
        ("alpha:0-1", "", "slots are numbers"),
        ("alpha:", "", "slots are numbers"),
        ("alpha:" + "1" * 5000, "", "slots are numbers"),
        ("alpha@alpha:0", "", "host alpha is named twice"),
        ("alpha@@beta", "", "no host ''"),
        ("", "alpha@beta", "leaves no slot of any host"),
    ],
)
def test_refusals(include: str, exclude: str, reason: str) -> None:
    with pytest.raises(SpecError) as caught:
        select(POOL, include, exclude)
    assert reason in str(caught.value) and caught.value.problems[0].fix


def test_all_mistakes_of_a_filter_come_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        select(POOL, "gamma@alpha:7@beta")
    assert len(caught.value.problems) == 2
