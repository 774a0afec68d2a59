"""Commands, programs, links and flags of the documentation are correct."""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from e2e.support import models
from e2e.support.doc_blocks import Block, PageRunner, blocks, installs, missing_files
from e2e.support.image_files import encoded, picture
from e2e.support.server import ROOT, run_to_exit
from torch import Tensor, nn

# Pages whose blocks form one program each, in order.
PROGRAMS = [
    ROOT / "README.md",
    ROOT / "docs/quickstart.md",
    ROOT / "docs/tutorials/serve.md",
    ROOT / "docs/tutorials/train.md",
    ROOT / "docs/tutorials/spoiled-run.md",
    ROOT / "docs/tutorials/jobs.md",
    ROOT / "docs/tutorials/from-data-parallel.md",
    ROOT / "docs/tutorials/from-triton.md",
    ROOT / "docs/guides/formats.md",
    ROOT / "docs/guides/security.md",
    ROOT / "docs/guides/images.md",
    ROOT / "docs/guides/decoding.md",
    ROOT / "docs/guides/text.md",
    pytest.param(
        ROOT / "docs/guides/lora.md",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("peft") is None, reason="peft is not installed"
        ),
    ),
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Without the pages of the packages that the dashboard preview installs.
DEPLOY_PAGES = [
    page for page in sorted((ROOT / "deploy").rglob("*.md")) if "node_modules" not in page.parts
]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


class ImageClassifier(nn.Module):
    """Takes images [rows, 3, 224, 224], and returns 1000 logits for each."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1000)

    def forward(self, image: Tensor) -> Tensor:
        return self.layer(image.mean([2, 3]))


class TextClassifier(nn.Module):
    """Takes token IDs [rows, length] with their mask, and returns 2 logits for each text."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        tokens = input_ids * attention_mask
        return torch.stack([tokens.sum(1), attention_mask.sum(1)], 1).to(torch.float32)


def shorten_training(example: str, directory: Path) -> None:
    """Makes the job of an example train for one epoch."""
    (directory / "examples").unlink()
    shutil.copytree(ROOT / "examples", directory / "examples")
    spec = directory / "examples" / example / "train.yaml"
    text, count = re.subn(r"^epochs: \d+$", "epochs: 1", spec.read_text(), flags=re.MULTILINE)
    assert count == 1
    spec.write_text(text)


def make_encoded_requests(directory: Path) -> None:
    """Makes the models that decoding.md configures, and the files that it sends."""
    image_config, text_config = [
        block.text
        for block in blocks(ROOT / "docs/guides/decoding.md")
        if block.text.startswith("max_batch_size")
    ]
    repository = directory / "models"
    models.export(repository / "resnet", ImageClassifier(), config=image_config)
    labels = [f"label {index}" for index in range(1000)]
    (repository / "resnet/labels.txt").write_text("\n".join(labels))
    models.export(repository / "sentiment", TextClassifier(), config=text_config)
    tokenizer = ROOT / "tests/unit/decode/tokenizers/bert.json"
    shutil.copy(tokenizer, repository / "sentiment/tokenizer.json")
    for seed, name in enumerate(("cat.jpg", "dog.jpg")):
        (directory / name).write_bytes(encoded(picture(300, 280, seed=seed), "JPEG"))


# Makes what the reader of a page has, or shortens what its blocks do.
PREPARE: dict[str, Callable[[Path], None]] = {
    "docs/guides/images.md": functools.partial(shorten_training, "images"),
    "docs/guides/text.md": functools.partial(shorten_training, "reviews"),
    "docs/guides/decoding.md": make_encoded_requests,
}


@pytest.mark.parametrize("page", PROGRAMS, ids=name)
def test_blocks_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # Pages name it from the root.
    if name(page) in PREPARE:
        PREPARE[name(page)](tmp_path)
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


def test_folders_have_few_files() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "server", "client", "bench", "docs"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    folders = Counter(Path(path).parent for path in listed)
    for folder, files in folders.items():
        if "tests" not in folder.parts:
            assert files <= (25 if folder.parts[0] == "bench" else 40), folder


FLAG_ROW = re.compile(r"^\| `--(\w+)[^`]*` \| (\S+)", re.MULTILINE)


def flags_and_defaults() -> dict[str, str]:
    """Returns the flags in the server's help; "" if a flag has no default."""
    text = run_to_exit("--help").stdout
    flags = {}
    for line in text[text.index("Options:") : text.index("Examples:")].splitlines():
        if line.startswith("  --"):
            usage = re.split(r" {2,}", line.strip())[0]
            name, _, default = usage[2:].replace("MODULE=LEVEL", "").partition("=")
            flags[name.split()[0]] = default
    return flags


def test_every_flag_is_documented_with_its_default() -> None:
    flags = flags_and_defaults()
    documented = dict(FLAG_ROW.findall((ROOT / "docs/reference/flags.md").read_text()))
    assert documented.keys() == flags.keys() - {"version"}
    for name, default in flags.items():
        if default:
            assert documented[name].strip("`") == default, name


def test_paths_of_the_architecture_exist() -> None:
    for page in (ROOT / "docs/architecture").glob("*.md"):
        for path in re.findall(r"`(\w+/[\w/]+\.(?:cc|h))`", page.read_text()):
            assert (ROOT / "server" / path).exists(), f"{page.name}: {path}"


LOCK = re.compile(r"^( +)(?:mutable )?absl::Mutex (\w+)(?: ABSL_\w+\(.*\))?;", re.MULTILINE)
CLASS = re.compile(r"^( *)(?:class|struct) (?:\w+::)?(\w+) ", re.MULTILINE)


def test_locks_of_the_server_are_documented() -> None:
    page = (ROOT / "docs/architecture/threads.md").read_text()
    locks = 0
    for source in (ROOT / "server").rglob("*.[hc]*"):
        text = source.read_text()
        for lock in LOCK.finditer(text):
            outer = [
                name
                for indent, name in CLASS.findall(text[: lock.start()])
                if len(indent) < len(lock[1])
            ]
            assert f"{outer[-1]}::{lock[2]}`" in page, source
            locks += 1
    assert locks > 30


def test_diagrams_are_up_to_date() -> None:
    subprocess.run([sys.executable, ROOT / "scripts/diagrams.py", "--check"], check=True)


LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", [*PAGES, *DEPLOY_PAGES], ids=name)
def test_links_of_a_page_resolve(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in LINK.findall(text):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link
