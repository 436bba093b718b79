"""How good one generated answer is, beside the expected one: a number in [0, 1] for each metric."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from ftcore.spec.errors import SpecError

METRICS = ("exact_match", "valid_json", "regex", "rouge_l")
Metric = Callable[[str, str], float]
"""(expected, answer) -> score."""


def metrics_for(names: Sequence[str], regex: str) -> dict[str, Metric]:
    """The functions of the named metrics, in the order of METRICS. Raises SpecError when rouge_l is asked for and its library is not installed."""
    pattern = re.compile(regex)
    known: dict[str, Callable[[], Metric]] = {
        "exact_match": lambda: exact_match,
        "valid_json": lambda: valid_json,
        "regex": lambda: lambda _expected, answer: float(pattern.fullmatch(answer.strip()) is not None),
        "rouge_l": rouge_l,
    }
    return {name: known[name]() for name in METRICS if name in names}


def exact_match(expected: str, answer: str) -> float:
    """1 when the texts are equal without the white space around them.

    Two JSON objects or lists are compared as values: the order of keys and the spacing don't count.
    """
    wanted, given = parse_json(expected), parse_json(answer)
    if wanted is not None and given is not None:
        return float(_canonical(wanted) == _canonical(given))
    return float(expected.strip() == answer.strip())


def valid_json(expected: str, answer: str) -> float:
    """1 when the answer is one JSON object or list and nothing else."""
    return float(parse_json(answer) is not None)


def rouge_l() -> Metric:
    """ROUGE-L's F-measure by the package rouge_score, without stemming. Raises SpecError when it is not installed."""
    try:
        from rouge_score import rouge_scorer
    except ImportError as error:
        raise SpecError("the metric rouge_l needs the package rouge-score", where="evaluation.metrics", fix="pip install 'ftlaunch[eval]'") from error
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=False)
    return lambda expected, answer: float(scorer.score(expected, answer)["rougeL"].fmeasure)


def parse_json(text: str) -> Any:
    """The JSON object or list that `text` is, or None when it is anything else (NaN and infinities are no JSON)."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) else None


def _refuse(name: str) -> None:
    raise ValueError(name)


def _canonical(value: Any) -> str:
    # As text: in Python True equals 1, and 1 equals 1.0.
    return json.dumps(value, sort_keys=True)
