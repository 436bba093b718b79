"""data_report.json as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ftcore.spec.errors import visible
from launcher.data_verbs.histogram import histogram_lines
from launcher.data_verbs.paint import Paint
from launcher.run_folder import shown

Facts = Mapping[str, Any]

LABEL = 12
"""Cells of a line's title."""
SHOWN_CHARACTERS = 1500
"""Of a rendered sample; the page and the JSON hold all of it."""
REASONS = {
    "overlong": "longer than data.max_length",
    "no_supervised_tokens": "without a supervised token",
    "bad_row": "bad",
}
"""Reason as the counts have it -> in words."""


def render_report(report: Facts, paint: Paint, *, width: int) -> str:
    """The whole report; `width`: cells of a line."""
    lines = [paint.title(f"data of {report['spec']}"), *_head(report), *(paint.warning(f"note: {note}") for note in report["notes"])]
    for name, facts in report["sets"].items():
        lines += ["", *_set(name, facts, report, paint, width)]
    if report["overlaps"] or report["mix"] or report["refusals"]:
        lines += ["", paint.title("between the sets"), *(paint.wrong(_line("refused", _problem(each))) for each in report["refusals"])]
        lines += [*_mix(report["mix"], report["sets"]), *_overlaps(report["overlaps"], paint)]
    return "\n".join(lines)


def _head(report: Facts) -> list[str]:
    rules = ", ".join(f"{name} {report[name]}" for name in ("max_length", "overlong", "on_bad_row", "loss_on"))
    return [_line("model", report["model"]), _line("rules", rules)]


def _set(name: str, facts: Facts, report: Facts, paint: Paint, width: int) -> Iterator[str]:
    purpose = "trained on" if facts["purpose"] == "train" else "held out"
    yield paint.title(f"{name} ({purpose}, {facts['key']}): {_short(facts['path'])}")
    if len(facts["files"]) > 1:
        yield _line("files", _files(facts["files"]))
    if facts["revision"]:
        yield _line("revision", facts["revision"])
    if facts["format"]:
        yield _line("format", f"{facts['format']}, {facts['format_reason']}" if facts["format_reason"] else facts["format"])
    if facts["template"]:
        yield _line("template", facts["template"]["described"])
        if facts["template"]["note"]:
            yield paint.warning(_line("note", facts["template"]["note"]))
    for text in refusal_lines(facts["refusals"]):
        yield paint.wrong(_line("refused", text))
    if facts["rows"]:
        yield from _what_became(facts, report["max_length"], paint, width)
    for sample in facts["rendered"]:
        yield from ("", *_sample(name, sample, paint))


def _what_became(facts: Facts, max_length: int, paint: Paint, width: int) -> Iterator[str]:
    """The rows of a set that could be read."""
    if facts["refusals"]:
        yield _line("", "what follows leaves out the rows that are refused")
    yield _line("rows", rows_line(facts))
    yield from _not_kept(facts, paint)
    yield _line("tokens", tokens_line(facts))
    if facts["samples"]:
        yield _line("supervised", _supervised(facts))
    if facts["without_targets"]:
        count = facts["dropped"].get("no_supervised_tokens", 0)
        yield paint.warning(_line("no targets", f"{counted(count, 'row')} without a supervised token: {_numbers(facts['without_targets'], count)}"))
    if facts["weights"]:
        weights = facts["weights"]
        text = f"{counted(weights['samples'], 'sample')} with weights other than 1, {weights['smallest']:g} to {weights['largest']:g}; sum over all tokens"
        yield _line("weights", f"{text} {weights['sum']:,.0f}")
    yield from _lengths(facts, max_length, width)
    if facts["samples"]:
        yield _copies(facts["copies"], paint)
    if facts["longest"]:
        yield _line("longest", ", ".join(_long(each) for each in facts["longest"][:5]))


def _files(files: list[str]) -> str:
    return f"{len(files):,}: {', '.join(map(_short, files[:3]))}{', ...' if len(files) > 3 else ''}"


def _problem(problem: Facts) -> str:
    file = _short(problem["file"]) if problem["file"] else ""
    place = ": ".join(part for part in (file + (f":{problem['line']}" if problem["line"] else ""), problem["where"]) if part)
    return "".join([f"{place}: " if place else "", str(problem["what"]), f" ({problem['fix']})" if problem["fix"] else ""])


def refusal_lines(problems: Iterable[Facts]) -> Iterator[str]:
    """Why training would refuse a set; the same mistake in many places is one line."""
    alike: dict[tuple[str, str, str], list[Facts]] = {}
    for problem in problems:
        alike.setdefault((problem["file"], problem["what"], problem["fix"]), []).append(problem)
    for same in alike.values():
        others = [each["where"] + (f" (line {each['line']})" if each["line"] else "") for each in same[1:]]
        also = f"; also {', '.join(others[:5])}{f' and {len(others) - 5:,} more' if len(others) > 5 else ''}" if others else ""
        yield _problem(same[0]) + also


def rows_line(facts: Facts) -> str:
    """What the rows became; `facts`: those of a report or of a PreparedSet."""
    parts = [f"{counted(facts['rows'], 'row')} -> {counted(facts['samples'], 'sample')}"]
    parts += [f"{count:,} dropped: {REASONS.get(reason, reason)}" for reason, count in facts["dropped"].items() if count]
    parts += [f"{facts['truncated']:,} cut to data.max_length"] if facts["truncated"] else []
    parts += [f"{facts['lost_ends']:,} of them without the end of their last answer"] if facts["lost_ends"] else []
    parts += [f"{facts['split']:,} split"] if facts["split"] else []
    return "; ".join(parts)


def _not_kept(facts: Facts, paint: Paint) -> Iterator[str]:
    """The first rows of each kind, then where all of them stand."""
    for kind, rows in facts["first"].items():
        for each in rows:
            line = f"line {each['line']}" if each["line"] else ""
            file = _short(each["file"]) if len(facts["files"]) > 1 else ""
            place = ", ".join(part for part in (file, line, f"{each['tokens']:,} tokens" if each["tokens"] else "") if part)
            roles = f" (roles: {each['roles']})" if each["roles"] else ""
            text = f"row {each['row']}{f' ({place})' if place else ''} {kind}: {REASONS.get(each['reason'], each['reason'])}{roles}"
            yield paint.warning(_line("", text)) if kind == "bad" else _line("", text)
    if facts["rows_file"]:
        yield _line("", f"all of them: {_short(facts['rows_file'])}")


def tokens_line(facts: Facts) -> str:
    """Where the tokens went."""
    repeated = f" - {facts['repeated_tokens']:,} repeated by splits" if facts["repeated_tokens"] else ""
    return f"{facts['tokens_read']:,} read = {facts['tokens']:,} kept{repeated} + {facts['dropped_tokens']:,} dropped"


def _supervised(facts: Facts) -> str:
    share = 100 * facts["supervised_tokens"] / facts["tokens"] if facts["tokens"] else 0.0
    spread = facts["supervised_shares"]
    by_sample = f"; by sample {spread['smallest']} % at least, {spread['percentiles']['p50']} % median, {spread['largest']} % at most" if spread else ""
    return f"{facts['supervised_tokens']:,} tokens, {share:.1f} % of those kept{by_sample}"


def _lengths(facts: Facts, max_length: int, width: int) -> Iterator[str]:
    spread = facts["lengths"]
    if spread:
        percentiles = "  ".join(f"{name} {value:,}" for name, value in spread["percentiles"].items())
        yield _line("lengths", f"min {spread['smallest']:,}  {percentiles}  max {spread['largest']:,}  mean {spread['mean']:,.1f} tokens")
    for line in histogram_lines(facts["histogram"], max_length, max(10, min(60, width - LABEL - 34))):
        yield _line("", line)


def _copies(copies: Facts, paint: Paint) -> str:
    if not copies["rows"]:
        return _line("duplicates", "none")
    groups = "; ".join(" = ".join(f"row {row}" for row in group[:4]) + (" = ..." if len(group) > 4 else "") for group in copies["groups"][:5])
    repeat = f"{counted(copies['rows'], 'row')} {'repeats' if copies['rows'] == 1 else 'repeat'} an earlier one"
    return paint.warning(_line("duplicates", f"{repeat}: {groups}{'; ...' if copies['group_count'] > 5 else ''}"))


def _long(each: Facts) -> str:
    return f"row {each['row']}: {each['tokens']:,}" + ("" if each["outcome"] == "kept" else f" ({each['outcome']})")


def _sample(name: str, sample: Facts, paint: Paint) -> Iterator[str]:
    yield paint.faint(f"--- {name}, row {sample['row']}: {sample['tokens']:,} tokens, {sample['supervised_tokens']:,} supervised ---")
    yield marked_text(sample["segments"], paint, SHOWN_CHARACTERS).removesuffix("\n")


def marked_text(segments: Iterable[Facts], paint: Paint, most: int | None = None) -> str:
    """A sample's text with its supervised parts marked; `most`: characters before it is cut off."""
    parts, left = [], most
    for segment in segments:
        text = segment["text"]
        shown = text if left is None else text[:left]
        parts.append(paint.learned(shown, segment["weight"]) if segment["weight"] else paint.plain(shown))
        if left is not None:
            left -= len(text)
            if left < 0:
                parts.append(paint.faint("\n... cut here: data_report.json and the page have all of it"))
                break
    return "".join(parts)


def _mix(mix: Facts, sets: Facts) -> Iterator[str]:
    for name, part in mix.items():
        shares = f"{100 * part['samples']:.1f} % of the samples, {100 * part['tokens']:.1f} % of the tokens"
        yield _line("mix", f"{name}: {shares} ({part['asked']}); an epoch draws {part['draws']:,} of its {counted(sets[name]['samples'], 'sample')}")


def _overlaps(overlaps: Iterable[Facts], paint: Paint) -> Iterator[str]:
    for each in overlaps:
        pair = f"{each['held_out']} and {each['training']}"
        if not each["prompts"]:
            yield _line("overlap", f"{pair}: no row of the one is in the other")
            continue
        rows = f"{each['rows']:,} held-out rows are trained on, {each['prompts'] - each['rows']:,} more with their prompt alone"
        first = ", ".join(f"row {held} = row {trained}" for held, trained in each["pairs"][:5])
        yield paint.warning(_line("overlap", f"{pair}: {rows}: {first}"))


def _numbers(rows: list[int], count: int) -> str:
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows))}{', ...' if count > len(rows) else ''}"


def _short(path: str) -> str:
    return shown(Path(path))


def counted(count: int, noun: str) -> str:
    """1 row, 2 rows."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _line(title: str, text: str) -> str:
    return visible(f"  {title:<{LABEL}}{text}")
