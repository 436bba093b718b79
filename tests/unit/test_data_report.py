"""The parts of a data report: how lengths are spread, what is there twice, what became of rows, pieces of text, and the page."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcore.data.cache import Counts, SampleSet, write_samples
from ftcore.data.prepared import PreparedSet
from ftcore.data_report.copies import copies_within, keys_of, overlap_of
from ftcore.data_report.facts import Report, SetReport, TemplateFacts
from ftcore.data_report.outcomes import add_up, read_outcomes
from ftcore.data_report.page import plot_of, render_page
from ftcore.data_report.rendered import segments_of, token_text
from ftcore.data_report.set_facts import SetSource, set_report
from ftcore.data_report.spread import histogram_of, round_width, spread_of
from ftcore.spec.errors import Problem
from tests.unit.made_tokenizers import byte_level

EVIL = '<script>alert("1")</script> & \x1b[31mred'


def samples_of(path: Path, rows: Sequence[tuple[int, list[int], tuple[int, int]]], weights: Sequence[float] | None = None) -> SampleSet:
    """A set of (row, ids, supervised range)."""
    ids = [np.array(each, dtype=np.int32) for _, each, _ in rows]
    spans = [(span,) for _, _, span in rows]
    supervised = sum(end - max(start, 1) for ((start, end),) in spans)
    counts = Counts(rows=len(rows), tokens=sum(map(len, ids)), supervised_tokens=supervised)
    write_samples(path, ids, spans, [row for row, _, _ in rows], counts, [(weight,) for weight in weights] if weights else None)
    return SampleSet.open(path)


def test_percentiles_are_lengths_that_are_there() -> None:
    found = spread_of(np.array([10, 20, 30, 1000]))
    assert found is not None and (found.smallest, found.largest, found.mean) == (10, 1000, 265)
    assert found.percentiles == {"p5": 10, "p25": 10, "p50": 20, "p75": 30, "p90": 1000, "p95": 1000, "p99": 1000}
    assert spread_of(np.zeros(0, dtype=np.int32)) is None


LENGTHS = st.lists(st.integers(1, 100_000), max_size=60).map(lambda values: np.array(values, dtype=np.int64))


@given(LENGTHS, LENGTHS, st.integers(1, 5000))
def test_bins_hold_each_length_once_and_part_at_the_limit(kept: np.ndarray, dropped: np.ndarray, max_length: int) -> None:
    bins = histogram_of(kept, dropped, max_length)
    assert sum(each.kept for each in bins) == len(kept) and sum(each.dropped for each in bins) == len(dropped)
    assert len(bins) <= 40 and all(each.end is None or each.start < each.end for each in bins)
    for each, following in itertools.pairwise(bins):
        assert each.end == following.start
    for each in bins:
        end = max(kept.max(initial=0), dropped.max(initial=0)) + 1 if each.end is None else each.end
        assert each.kept == ((kept >= each.start) & (kept < end)).sum()
        # No bin but an open one holds lengths on both sides of the limit.
        assert each.end is None or not each.start <= max_length < each.end - 1 or not max(kept.max(initial=0), dropped.max(initial=0)) > max_length


def test_a_row_far_from_the_rest_does_not_flatten_the_plot() -> None:
    # E10: one row 20 times as long.
    bins = histogram_of(np.array([*range(100, 200), 4000]), np.zeros(0, dtype=np.int64), 8192)
    assert bins[-1].kept == 1 and bins[-1].start <= 4000
    assert sum(1 for each in bins if each.kept) > 8
    assert [round_width(value) for value in (0.1, 1, 1.1, 3, 7, 12, 51)] == [1, 1, 2, 5, 10, 20, 100]


def test_copies_within_a_set(tmp_path: Path) -> None:
    rows = [(1, [5, 6, 7], (1, 3)), (2, [5, 6, 7], (2, 3)), (4, [5, 6, 7], (1, 3)), (9, [5, 6, 7], (1, 3)), (10, [8, 9], (1, 2)), (10, [8, 9], (1, 2))]
    samples = samples_of(tmp_path / "a.arrow", rows)
    found = copies_within(keys_of(samples, "a"), 10)
    # The same ids with another mask are no copy; parts of one row neither.
    assert (found.rows, found.groups, found.group_count) == (2, [[1, 4, 9]], 1)
    assert copies_within(keys_of(samples, "a"), 0).groups == []


def test_held_out_rows_that_are_trained_on(tmp_path: Path) -> None:
    train = samples_of(tmp_path / "t.arrow", [(3, [1, 2, 3, 4], (2, 4)), (5, [7, 7, 7], (0, 3)), (6, [9, 9, 1], (2, 3))])
    held = samples_of(tmp_path / "h.arrow", [(1, [1, 2, 3, 4], (2, 4)), (2, [9, 9, 5], (2, 3)), (3, [4, 4, 4], (0, 3)), (4, [7, 8, 8], (0, 3))])
    found = overlap_of(("train", keys_of(train, "t")), ("eval", keys_of(held, "h")), 5)
    # Row 3 and 4 are texts, which have no prompt to be alike.
    assert (found.rows, found.prompts, found.pairs) == (1, 2, [(1, 3), (2, 6)])


def outcome_lines(path: Path, count: int = 3) -> str:
    lines = [{"row": 2, "file": "f.jsonl", "line": 2, "outcome": "bad", "reason": EVIL, "tokens": 0}]
    lines += [{"row": 10 + at, "file": "f.jsonl", "line": None, "outcome": "dropped", "reason": "overlong", "tokens": 3000 + at} for at in range(count)]
    lines += [{"row": 30, "file": "f.jsonl", "line": 30, "outcome": "dropped", "reason": "no_supervised_tokens", "tokens": 7, "roles": "system user"}]
    lines += [{"row": 1, "file": "f.jsonl", "line": 1, "outcome": "truncated", "reason": "cut", "tokens": 2000}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_outcomes_are_added_up(tmp_path: Path) -> None:
    told = add_up(read_outcomes(outcome_lines(tmp_path / "o.jsonl")), 2)
    assert told.counts == {"bad": 1, "dropped": 4, "truncated": 1}
    assert [each.row for each in told.first["dropped"]] == [10, 11] and told.without_targets == [30]
    assert sorted(told.lost_lengths.tolist()) == [7, 3000, 3001, 3002] and [each.row for each in told.longest] == [12, 11]
    assert list(read_outcomes("")) == [] and list(read_outcomes(str(tmp_path / "none"))) == []


def test_pieces_of_text_join_to_the_whole() -> None:
    backend = byte_level(specials=("<|im_end|>",))
    text = "question 日本 naïve answer 👍🏽<|im_end|> more"
    ids = backend.encode(text, add_special_tokens=False).ids
    for start in range(len(ids)):
        segments = segments_of(backend, ids, [(start, len(ids) - 1)], [0.5]) if start < len(ids) - 1 else []
        assert not segments or sum(each.tokens for each in segments) == len(ids)
    segments = segments_of(backend, ids, [(3, 5), (5, len(ids))], [1.0, 2.0])
    assert "".join(each.text for each in segments) == text
    assert [each.weight for each in segments] == [0.0, 1.0, 2.0]
    texts = [token_text(backend, token) for token in ids]
    assert "<|im_end|>" in texts and any(each.startswith("<0x") for each in texts)
    assert token_text(backend, 10**6) == ""


def facts_of(tmp_path: Path, name: str = "data.train") -> SetReport:
    samples = samples_of(tmp_path / f"{name}.arrow", [(1, [5, 6, 7] * 9, (1, 27)), (3, [5] * 4, (2, 4)), (4, [5] * 4, (2, 4))], weights=[1.0, 0.5, 0.5])
    prepared = PreparedSet(
        arrow=str(tmp_path / f"{name}.arrow"),
        samples=3,
        rows=8,
        tokens=35,
        supervised_tokens=int(samples.supervised.sum()),
        dropped={"overlong": 3, "bad_row": 1, "no_supervised_tokens": 1},
        dropped_tokens=11_000,
        truncated=1,
        outcomes=outcome_lines(tmp_path / f"{name}.jsonl"),
    )
    source = SetSource(
        key=name,
        purpose="train" if name == "data.train" else "eval",
        path=EVIL,
        files=("f.jsonl", EVIL),
        format="messages",
        format_reason="seen",
        revision="",
        template=TemplateFacts(name="own", masks="rendering", described="own", note="touching <b>"),
        refusals=(Problem(what=EVIL, where="row 2", file="f.jsonl", line=2, fix="mend it"),),
        rows_file="rows.jsonl",
    )
    backend = byte_level(specials=("<|im_end|>",))
    return set_report(source, prepared, keys_of(samples, name), backend, max_length=1000, listed=4, rendered=2)


def report_of(tmp_path: Path) -> Report:
    """A report with everything in it."""
    facts, held = facts_of(tmp_path), facts_of(tmp_path, "data.eval")
    overlap = overlap_of(("train", keys_of(SampleSet.open(facts.arrow), "t")), ("eval", keys_of(SampleSet.open(held.arrow), "h")), 5)
    rules = {"max_length": 1000, "overlong": "drop", "on_bad_row": "error", "loss_on": "assistant"}
    sets = {"train": facts, "eval": replace(held, refusals=[])}
    return Report(spec="s.yaml", created="2026", model=EVIL, tokenizer="t", sets=sets, overlaps=[overlap], notes=["a note"], refuses=True, **rules)


def test_a_sets_facts(tmp_path: Path) -> None:
    facts = facts_of(tmp_path)
    assert facts.tokens_read == 35 + 11_000
    assert [(each.row, each.outcome) for each in facts.longest] == [(12, "dropped"), (11, "dropped"), (10, "dropped"), (1, "truncated")]
    assert facts.weights is not None and (facts.weights.samples, facts.weights.smallest, facts.weights.sum) == (2, 0.5, 26 + 2)
    assert (facts.copies.rows, facts.copies.groups) == (1, [[3, 4]]) and facts.without_targets == [30]
    assert [each.row for each in facts.rendered] == [1, 4] and facts.supervised_share == pytest.approx(30 / 35)
    empty = SetSource(key="k", purpose="eval", path="p", files=(), format="", format_reason="", revision="", template=None, refusals=(), rows_file="r")
    nothing = PreparedSet(arrow="", samples=0, rows=0, tokens=0, supervised_tokens=0)
    facts = set_report(empty, nothing, None, None, max_length=10, listed=3, rendered=3)
    assert (facts.lengths, facts.histogram, facts.rendered, facts.rows_file, facts.supervised_share) == (None, [], [], "", 0.0)


class Page(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_is_one_file_and_escapes_what_rows_hold(tmp_path: Path) -> None:
    text = render_page(report_of(tmp_path))
    page = Page(text)
    assert page.open == [] and {"svg", "rect", "mark", "style"} <= set(page.tags)
    # Nothing runs, and nothing is fetched.
    assert not {"script", "link", "img", "iframe", "a"} & set(page.tags)
    assert not [name for name, value in page.attributes if name in ("src", "href") or name.startswith("on")] and "://" not in text and "url(" not in text
    assert page.words.count('<script>alert("1")</script>') >= 4 and "prefers-color-scheme: dark" in text
    assert "\x1b" not in text and 'class="warn"' in text
    for words in ("11,035 read = 35 kept + 11,000 dropped", "1 row repeats", "Training would refuse this data", "data.max_length 1,000", "a note"):
        assert words in " ".join(page.words.split())


def test_the_limit_is_drawn_between_the_bins() -> None:
    bins = histogram_of(np.array([10, 20]), np.array([40]), 30)
    plot = plot_of(bins, 30)
    at = next(number for number, each in enumerate(bins) if each.start > 30)
    assert plot.limit_y is not None and plot.stripes[at - 1].y < plot.limit_y < plot.stripes[at].y
    assert plot_of(bins, 100).limit_y is None and plot_of([], 100).stripes == []
