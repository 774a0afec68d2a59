"""Extracts code blocks from Markdown files."""

from __future__ import annotations

import re
from pathlib import Path


def fenced(path: Path, language: str) -> list[str]:
    """Returns the blocks of a language in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
