"""What stands in the code blocks of a Markdown file."""

from __future__ import annotations

import re
from pathlib import Path


def fenced(path: Path, language: str) -> list[str]:
    """The blocks of a language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
