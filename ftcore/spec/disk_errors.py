"""What the operating system says when a file can't be written, and what a user does about it."""

from __future__ import annotations

import errno
import os

REMEDIES = {
    errno.ENOSPC: "free some space on its disk",
    errno.EDQUOT: "free some space: the quota is used up",
    errno.EROFS: "its disk is read-only: make it writable again",
    errno.EACCES: "allow this user to use it (ls -l shows who may)",
    errno.EEXIST: "a file stands where a folder should be: move it away",
    errno.ENOTDIR: "a file stands where a folder should be: move it away",
    errno.EISDIR: "a folder stands where a file should be: move it away",
}
"""errno of what a user can mend -> how."""


def disk_errno(error: BaseException) -> int | None:
    """The errno of an error that is about a file a user can mend something about, a key of REMEDIES; else None."""
    number = error.errno if isinstance(error, OSError) else None
    # safetensors and torch tell of a full disk in words alone.
    if number is None and isinstance(error, Exception) and os.strerror(errno.ENOSPC) in str(error):
        number = errno.ENOSPC
    return number if number in REMEDIES else None
