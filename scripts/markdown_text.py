"""Text of generated Markdown pages."""

from __future__ import annotations

import textwrap

COLUMNS = 116


def wrapped(text: str, indent: str = "", first: str | None = None) -> str:
    """Returns the text in lines of at most COLUMNS. first: indent of the first line."""
    return textwrap.fill(
        " ".join(text.split()),
        COLUMNS,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
