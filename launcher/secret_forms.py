"""What looks like a secret by its form, or by a name beside it: strict enough that names of models, files and commits pass."""

from __future__ import annotations

import re

from launcher.variable_names import URL_WITH_PASSWORD, is_secret

# Bounded, so that a long text takes no longer than its length.
_START = r"(?<![A-Za-z0-9])"
_FORMS = (
    ("a Hugging Face token", re.compile(_START + r"hf_[A-Za-z0-9]{30,64}(?![A-Za-z0-9])")),
    ("a GitHub token", re.compile(_START + r"(?:gh[opsru]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{40})")),
    ("a GitLab token", re.compile(_START + r"glpat-[A-Za-z0-9_-]{20}")),
    ("a Slack token", re.compile(_START + r"xox[abeprs]-[0-9]{6}")),
    ("an AWS access key", re.compile(_START + r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])")),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY")),
    ("a password", re.compile(r"\bsshpass\s{1,8}-p\s{0,8}[^\s$]")),
    ("a URL with a password", URL_WITH_PASSWORD),
)
_API_KEY = re.compile(_START + r"sk-[A-Za-z0-9_-]{20,300}")
_RUN = re.compile(r"[A-Za-z0-9]{16,}")


_WORDS = "password|passwd|passphrase|secret|token|api_?key|access_?key|secret_?key|auth_?token|access_?token|hf_?token|hub_?token|secret_?access_?key"
_VALUE = r"(?:=|: ?(?=\S+\s*$))[\"']?([^\s\"'<>{}$*,\[\]]{4,})"
_ASSIGNED = re.compile(rf"(?<![A-Za-z0-9_.])(?:([A-Z][A-Z0-9]{{0,40}}_[A-Z0-9_]{{1,80}})|(?i:{_WORDS})){_VALUE}", re.MULTILINE)
"""`HF_TOKEN=...`, `password: ...`: a variable of the environment, or a word that stands for nothing else, and its value.
Behind a colon a sentence may follow, but for a last word."""
_NO_VALUE = re.compile(r"[0-9.:]+|\.+|[xX]+|(?i:none|null|true|false|unset|your\S*|part|mandatory|required|optional)")


def secret_in(text: str) -> str:
    """What a part of the text looks like (`a Hugging Face token`); empty when nothing does."""
    for kind, form in _FORMS:
        if form.search(text):
            return kind
    # Words joined by hyphens (`sk-learn-docs-2024-instruct`) are a name; a key has a long run of letters and digits.
    for matched in _API_KEY.finditer(text):
        if any(any(c.isdigit() for c in run) and any(c.isalpha() for c in run) for run in _RUN.findall(matched[0])):
            return "an API key"
    for matched in _ASSIGNED.finditer(text):
        name, value = matched.groups()
        if (not name or is_secret(name)) and not _NO_VALUE.fullmatch(value):
            return "a secret with its name"
    return ""
