"""--include and --exclude: DeepSpeed's syntax with the right results."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
        ((Host(name="alpha", slots=2, user="alpha"),), "alpha@alpha:1", "", [("alpha", 1, (1,))]),
        ((Host(name="alpha", slots=2), Host(name="beta", slots=2, user="alpha")), "alpha@beta:1", "", [("alpha", 2, ()), ("beta", 1, (1,))]),
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
        ("@alpha", "", "no host ''"),
        ("alpha@", "", "no host ''"),
        ("trainer@alpha", "", "no host 'trainer'"),
        ("alpha beta", "", "no host 'alpha beta'"),
        ("alpha,beta", "", "no host 'alpha,beta'"),
        ("alpha:0:1", "", "no host 'alpha:0'"),
        ("alpha:0,", "", "slots are numbers"),
        ("alpha: 0", "", "slots are numbers"),
        ("alpha:-1", "", "slots are numbers"),
        ("", "alpha:0,1@beta:0,1", "leaves no slot of any host"),
        ("", "alpha:2", "alpha has no slot 2"),
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


_POOLS = st.lists(
    st.builds(
        Host,
        name=st.sampled_from(["alpha", "beta", "gamma", "a-1.lab", "10.0.0.7", "fd00::7", "n_2", "ada"]),
        slots=st.integers(1, 4),
        user=st.sampled_from(["", "", "ada", "bob", "beta"]),
        port=st.sampled_from([0, 2222]),
        environment=st.sampled_from([{}, {"A": "1"}]),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda host: host.name,
)


@st.composite
def _filters(draw: st.DrawFn) -> tuple[tuple[Host, ...], str, dict[str, set[int]]]:
    """A pool, a filter over it, and the slots of each host that it names."""
    pool = tuple(draw(_POOLS))
    names = {host.name for host in pool}
    parts, named = [], {}
    for host in draw(st.permutations(pool))[: draw(st.integers(1, len(pool)))]:
        slots = draw(st.lists(st.integers(0, host.slots - 1), unique=True, max_size=host.slots))
        name = draw(st.sampled_from([host.name, host.name.upper()]))
        # Only of a user who is called like no other host of the pool can be told who is meant.
        may_have_user = host.user and (host.user not in names or host.user == host.name)
        user = f"{host.user}@" if may_have_user and draw(st.booleans()) else ""
        parts.append(user + name + (f":{','.join(map(str, slots))}" if slots else ""))
        named[host.name] = set(slots) or set(range(host.slots))
    return pool, "@".join(parts), named


@settings(max_examples=300, deadline=None)
@given(_filters())
def test_any_filter_leaves_what_it_names_or_the_rest(drawn: tuple[tuple[Host, ...], str, dict[str, set[int]]]) -> None:  # A01, A07
    pool, text, named = drawn
    kept = {host.name: [slot for slot in range(host.slots) if slot in named.get(host.name, set())] for host in pool}
    rest = {host.name: [slot for slot in range(host.slots) if slot not in named.get(host.name, set())] for host in pool}
    assert _slots_of(select(pool, text)) == {name: slots for name, slots in kept.items() if slots}
    if any(rest.values()):
        assert _slots_of(select(pool, "", text)) == {name: slots for name, slots in rest.items() if slots}
    else:
        with pytest.raises(SpecError, match="leaves no slot"):
            select(pool, "", text)
    for host in select(pool, text):
        original = next(each for each in pool if each.name == host.name)
        assert dataclasses.replace(host, slots=original.slots, slot_ids=()) == original


def _slots_of(hosts: tuple[Host, ...]) -> dict[str, list[int]]:
    assert all(len(host.slot_ids) in (0, host.slots) for host in hosts)
    return {host.name: list(host.slot_ids or range(host.slots)) for host in hosts}
