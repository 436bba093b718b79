"""Names of environment variables: which may be set by a user, and which hold secrets."""

from __future__ import annotations

import re

from launcher.environment import SET_BY_LAUNCHER

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_SECRET_PARTS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "COOKIE", "SSHPASS", "DATABASE_URL")
_SECRET_WORDS = re.compile(r"(?:^|_)(?:[A-Z0-9]*KEYS?[0-9]*|AUTH|AUTHORIZATION|PAT|JWT|[A-Z0-9]*PASS|PWD|DSN|NETRC|BEARER|SESSIONID)(?:_|$)")
# Of text, or of the shell's folder: nothing secret about them.
_PLAIN = re.compile(r"TOKENIZERS?_|(?:^|_)(?:MAX|MIN|NUM|N)(?:_[A-Z]+)*_TOKENS?$|^(?:OLD)?PWD$|(?:^|_)(?:KEYBOARD|TOKENS_PER_[A-Z]+)(?:_|$)")
# Bounded, so that a long value takes no longer than its length.
URL_WITH_PASSWORD = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{0,20}://[^/?#@\s]{0,256}:[^/?#\s]{0,512}@")
_KNOWN_TOKEN = re.compile(r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA)[A-Za-z0-9_-]{16,}")
_OTHER_SECRET = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\b(?:Bearer|Basic) \S{8,}")

LATE = frozenset(("MASTER_ADDR", "MASTER_PORT"))
"""Set for each launch: the place where the ranks meet."""
PER_HOST = frozenset(("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"))
"""They number one host's own devices, so they mean something else on another."""


def is_secret(name: str, value: str = "") -> bool:
    """Whether a variable holds a secret, by its name, or by the form of its value (a URL with a password, a private key, a known kind of token)."""
    telling = _PLAIN.sub("", name.upper())
    if any(part in telling for part in _SECRET_PARTS) or _SECRET_WORDS.search(telling):
        return True
    if telling.endswith("_PROXY") and "@" in value:
        return True
    return any(form.search(value) for form in (URL_WITH_PASSWORD, _KNOWN_TOKEN, _OTHER_SECRET))


def refusal(name: str, value: str = "") -> tuple[str, str] | None:
    """Reason (to follow the name) and fix when a spec or a hostfile may not set this variable; None when it may."""
    if name in SET_BY_LAUNCHER:
        return "is set by ftlaunch for each rank", "remove it"
    if name in LATE:
        return "is set by ftlaunch for each launch", "remove it, and use cluster.master_addr and cluster.master_port (--master-addr, --master-port)"
    if is_secret(name, value):
        return "looks like a secret, and this file is copied into the run folder", "put it into the launching shell's environment or into --env-file"
    return None
