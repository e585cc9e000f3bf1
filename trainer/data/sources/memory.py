"""One limit for what a data set may take in memory, checked before anything of that size is made."""

from __future__ import annotations

from protocol.errors import DatasetError

MEMORY_LIMIT = 8 * 2**30


def check_fits(what: object, size: int, hint: str) -> None:
    """Refuse a data set that does not fit in memory.

    Args:
        what: File or folder, for the message.
        size: Bytes of its arrays.
        hint: What the reader can do to make it smaller.

    Raises:
        DatasetError: It takes more than the limit.
    """
    if size > MEMORY_LIMIT:
        expected = f"at most {MEMORY_LIMIT / 2**30:g} GiB decoded"
        raise DatasetError(f"{what} is too large for memory", expected=expected, got=f"{size / 2**30:.1f} GiB", hint=hint)
