"""The commands and programs of the documentation run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from e2e.documents import Block, PageRunner, blocks, installs, missing_files
from e2e.server import ROOT, run_to_exit

# Pages whose blocks form one program each, in their order.
PROGRAMS = [
    ROOT / "README.md",
    ROOT / "docs/quickstart.md",
    ROOT / "docs/tutorials/serve.md",
    ROOT / "docs/tutorials/train.md",
    ROOT / "docs/tutorials/from-data-parallel.md",
    ROOT / "docs/tutorials/from-triton.md",
    ROOT / "docs/guides/formats.md",
    ROOT / "docs/guides/security.md",
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PROGRAMS, ids=name)
def test_blocks_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with PageRunner(tmp_path) as runner:
        for block in blocks(page):
            if not installs(block):
                runner.run(block)


INSTALLATIONS = [block for page in PAGES for block in blocks(page) if installs(block)]


@pytest.mark.parametrize("block", INSTALLATIONS, ids=lambda block: block.id)
def test_installation_commands_name_files_that_exist(block: Block) -> None:
    assert missing_files(block) == []


def test_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 120


FLAG = re.compile(r"^  --(\w+)(?: [^\n=]*)?(?:=(\S+))?$", re.MULTILINE)
ROW = re.compile(r"^\| `--(\w+)[^`]*`(?:, `--(\w+)[^`]*`)* \| (\S+)", re.MULTILINE)


def test_every_flag_is_documented_with_its_default() -> None:
    text = run_to_exit("--help").stdout
    options = text[text.index("Options:") : text.index("Examples:")]
    flags = dict(FLAG.findall(options))
    assert len(flags) > 40
    documented = {
        name: default.strip("`")
        for name, _, default in ROW.findall((ROOT / "docs/reference/flags.md").read_text())
    }
    assert documented.keys() == flags.keys() - {"version"}
    for name, default in flags.items():
        if default:
            assert documented[name] == default, name


LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "deploy").rglob("*.md"))], ids=name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in LINK.findall(text):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link
