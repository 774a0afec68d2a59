#!/usr/bin/env python3
"""Records `braid top`, `braid jobs watch` and `plot`, and the status page, for the documentation.

usage: scripts/record_terminal.py [--output DIRECTORY]

  --output DIRECTORY  Folder of top.svg, watch.svg, plot.svg and status.png (default: docs/images)

Starts a server on two CPU slots and puts it under load: requests to two models, a trainer, a
training job and a job that waits. Runs the commands in a pseudo-terminal and draws what they
printed; the pictures of top and watch are animated. A viewer without animations shows the last picture. Opens the status page in
headless Chromium. Needs build/release/bin/braid-server, or the program that the environment variable BRAID_SERVER_BINARY names, and
Chromium (/usr/bin/chromium, or the program that the environment variable CHROMIUM names).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests")]
# gRPC logs a line about fork for every process that starts.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

import braid
import numpy as np
import torch
from e2e.support import chromium, jobs, models
from e2e.support.screens import Screen
from e2e.support.server import COMMAND
from preview_dashboards import compress
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

COLUMNS, LINES = 96, 23
PAGE_WIDTH = 1120
FEATURES, CLASSES, ROWS = 20, 5, 20_000
WARM_UP_SECONDS, TOP_SCREENS, WATCH_SCREENS = 4.0, 10, 12
WATCH_SECONDS = 0.7
JOB: dict[str, Any] = {
    "data": {"path": "table.parquet", "inputs": {"input": "image"}, "targets": {"target": "label"},
             "split": {"validation": 0.1}},
    "evaluate": {"metrics": ["accuracy"], "every": "3 epochs"}, "loss": "cross_entropy",
    "optimizer": {"name": "AdamW", "lr": 2e-4}, "batch_size": 256, "publish": "best",
}  # fmt: skip

SIZE, STEP, MARGIN, TOP = 13, 18, 24, 44
CELL = SIZE * 0.602
BACKGROUND, FOREGROUND, PROMPT = "#1e272c", "#eceff1", "#80cbc4"
COLORS = {
    0: "#263238", 1: "#ef9a9a", 2: "#a5d6a7", 3: "#ffe082", 4: "#90caf9", 5: "#ce93d8",
    6: "#80deea", 7: FOREGROUND, 8: "#607d8b",
}  # fmt: skip
# Words, spaces, and runs of characters that are drawn as shapes.
PIECES = re.compile("[\u2800-\u28ff]+|█+|░+| +|[^ █░\u2800-\u28ff]+")
SHADES = {"█": 1, "░": 0.35}
BRAILLE = [chr(0x2800 + bits) for bits in range(256)]
BRAILLE_DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
# Pixels from the top of a character to its baseline.
BASELINE = 12
FONT = "font-family='DejaVu Sans Mono, Menlo, Consolas, monospace'"

Picture = tuple[float, Sequence[Text]]


def export(repository: Path) -> None:
    torch.manual_seed(0)
    for name, width in (("digits", 256), ("ranker", 32)):
        module = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, width), torch.nn.ReLU(), torch.nn.Linear(width, CLASSES)
        )
        models.export(repository / name, module, inputs=[torch.zeros(1, FEATURES)])


@contextlib.contextmanager
def load(address: str) -> Iterator[None]:
    """Calls the server from one thread for each kind of work, each at a pace that varies."""
    ended = threading.Event()
    random = np.random.default_rng(0)
    x = random.standard_normal((64, FEATURES), np.float32)
    y = x[:, :CLASSES].argmax(1)

    def repeat(work: Callable[[braid.Client], object], seconds: float) -> None:
        with braid.connect(address) as client:
            while not ended.wait(seconds * (0.5 + random.random())):
                work(client)

    with braid.connect(address) as client:
        trainer = client.create_trainer(
            "ranker", name="online", loss="cross_entropy", optimizer={"name": "SGD", "lr": 0.05}
        )
        works: list[tuple[Callable[[braid.Client], object], float]] = [
            (lambda client: client.infer("digits", {"input": x[:8]}), 0.004),
            (lambda client: client.infer("ranker", {"input": x[:1]}), 0.010),
            (lambda _: trainer.step({"input": x}, {"target": y}), 0.060),
        ]
        threads = [threading.Thread(target=repeat, args=work) for work in works]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()


def record_top(server: jobs.JobServer) -> list[Picture]:
    metrics = f"127.0.0.1:{server.ready['metrics_port']}"
    command = [str(COMMAND), "--server", server.address, "top", "--metrics", metrics]
    pictures: list[Picture] = []
    with Screen(command, columns=COLUMNS, lines=LINES) as screen:
        while len(pictures) < TOP_SCREENS:
            drawn = screen.raw_screen
            screen.wait_for(lambda: screen.raw_screen not in ("", drawn))  # noqa: B023
            if "█" in screen.text:  # The first screens have no rates.
                pictures.append((1.0, lines_of(screen.raw_screen, server)))
        screen.press("q")
        screen.wait()
    return pictures


def record_page(server: jobs.JobServer, picture: Path) -> None:
    with chromium.Page(PAGE_WIDTH, height=700) as page:
        page.open(server.metrics_url.removesuffix("metrics"))
        # The first figures have no rates.
        page.wait_for("document.querySelector('#devices td')?.innerText.includes('%') === true")
        page.screenshot(picture)


def record_watch(server: jobs.JobServer, job: str) -> list[Picture]:
    """Records the bar at equal intervals, and the result."""
    command = [str(COMMAND), "--server", server.address, "jobs", "watch", job]
    prompt = Text.assemble((f"$ braid jobs watch {job}", PROMPT))
    pictures: list[Picture] = []
    with Screen(command, columns=COLUMNS, lines=LINES) as screen:
        while screen.process.poll() is None:
            until = time.monotonic() + WATCH_SECONDS
            with contextlib.suppress(AssertionError):  # The process has ended.
                screen.wait_for(lambda: time.monotonic() >= until)  # noqa: B023
            bar = re.split(r"\r|\n", screen.output)[-1]
            if "rows/s" in bar:
                pictures.append((WATCH_SECONDS, [prompt, *lines_of(bar, server)]))
        screen.wait()
        result = screen.output.rstrip().rpartition("\n")[2]
    every = max(len(pictures) // WATCH_SCREENS, 1)
    return [*pictures[::every], (4.0, [prompt, *lines_of(result, server)])]


def record_plot(server: jobs.JobServer, job: str) -> list[Picture]:
    arguments = ["jobs", "plot", job, "--name", "loss", "--name", "evaluation/loss"]
    with Screen(
        [str(COMMAND), "--server", server.address, *arguments], columns=COLUMNS, lines=LINES
    ) as screen:
        screen.wait()
        prompt = Text.assemble((f"$ braid {' '.join(arguments)}", PROMPT))
        return [(1.0, [prompt, *lines_of(screen.output.rstrip(), server)])]


def lines_of(raw: str, server: jobs.JobServer) -> list[Text]:
    """Returns lines with their colors. The address is that of a default server."""
    address = server.address
    raw = raw.replace(address, "127.0.0.1:8001".ljust(len(address)))
    kept = re.sub(r"\x1b\[[0-9;?]*[A-LN-Zac-ln-z]", "", raw).replace("\r", "")
    return [Text.from_ansi(line) for line in kept.split("\n")]


def svg(pictures: Sequence[Picture]) -> str:
    """Draws the pictures, one after the other and again and again."""
    lines = max(len(picture) for _, picture in pictures)
    width, height = COLUMNS * CELL + 2 * MARGIN, TOP + STEP * lines + 8
    total = sum(seconds for seconds, _ in pictures)
    styles, drawn, start = [], [], 0.0
    for number, (seconds, picture) in enumerate(pictures):
        first, last = 100 * start / total, 100 * (start + seconds) / total
        start += seconds
        hidden = "0%{visibility:hidden}" if number else ""
        styles.append(
            f"@keyframes p{number}{{{hidden}{first:.3f}%{{visibility:visible}}"
            f"{min(last, 100):.3f}%,100%{{visibility:{'visible' if last > 99.9 else 'hidden'}}}}}"
            f"#p{number}{{animation:p{number} {total:g}s step-end infinite}}"
        )
        visible = "visible" if number == len(pictures) - 1 else "hidden"
        body = "\n".join(
            draw_line(line, TOP + STEP * row) for row, line in enumerate(picture) if line.plain
        )
        drawn.append(f"<g id='p{number}' visibility='{visible}'>\n{body}\n</g>")
    buttons = "".join(
        f"<circle cx='{x}' cy='18' r='5' fill='{color}'/>"
        for x, color in ((20, "#ff5f56"), (38, "#ffbd2e"), (56, "#27c93f"))
    )
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:g}' height='{height:g}' "
        f"viewBox='0 0 {width:g} {height:g}'>\n<style>{''.join(styles)}</style>\n"
        f"<rect width='{width:g}' height='{height:g}' rx='8' fill='{BACKGROUND}'/>{buttons}\n"
        f"<g font-size='{SIZE}' {FONT} xml:space='preserve'>\n" + "\n".join(drawn) + "\n</g>\n</svg>\n"
    )


def draw_line(line: Text, y: float) -> str:
    """Draws a line, each word at its column, so that no font can shift the next one."""
    pieces, column = [], 0
    for segment in line.render(Console(color_system="256")):
        style = segment.style or Style()
        extra = " font-weight='bold'" if style.bold else ""
        extra += " opacity='0.6'" if style.dim else ""
        fill = f"fill='{color_of(style.color)}'{extra}"
        for piece in PIECES.findall(segment.text):
            cells = cell_len(piece)
            x = MARGIN + column * CELL
            column += cells
            if piece[0] in BRAILLE:
                pieces.append(f"<path d='{dots(piece, x, y)}' {fill}/>")
            elif piece[0] in SHADES:
                pieces.append(
                    f"<rect x='{x:.1f}' y='{y - BASELINE:g}' width='{cells * CELL:.1f}' "
                    f"height='{STEP - 3}' fill-opacity='{SHADES[piece[0]]}' {fill}/>"
                )
            elif not piece.isspace():
                pieces.append(
                    f"<text x='{x:.1f}' y='{y:g}' textLength='{cells * CELL:.1f}' "
                    f"lengthAdjust='spacingAndGlyphs' {fill}>{escape(piece)}</text>"
                )
    return "".join(pieces)


def dots(text: str, x: float, y: float) -> str:
    """Returns the path of braille characters, which few monospaced fonts have."""
    path = ""
    for character in text:
        bits = ord(character) - ord(BRAILLE[0])
        for bit, (column, row) in enumerate(BRAILLE_DOTS):
            if bits >> bit & 1:
                left, top = x + (column + 0.2) * CELL / 2, y - BASELINE + row * STEP / 4
                path += f"M{left:.1f} {top:.1f}h2.4v3.2h-2.4z"
        x += CELL
    return path


def color_of(color: Color | None) -> str:
    if color is None or color.is_default:
        return FOREGROUND
    if color.triplet is not None:
        return color.triplet.hex
    return COLORS.get(color.number or 0, color.get_truecolor().hex)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs/images", metavar="DIRECTORY")
    output: Path = parser.parse_args().output
    if not chromium.PROGRAM.exists():
        sys.exit(chromium.MISSING)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        export(directory / "models")
        with jobs.serving(directory) as server:
            jobs.write_table(server.tables / "table.parquet", ROWS, np.float32, FEATURES, CLASSES)
            with braid.connect(server.address) as client:
                watched = client.jobs.train("digits", **JOB, epochs=200, id="nightly")
                client.jobs.infer(
                    "digits", id="scores",
                    data={"path": "table.parquet", "inputs": {"input": "image"}},
                    output={"path": "scores.parquet"},
                )  # fmt: skip
                with load(server.address):
                    time.sleep(WARM_UP_SECONDS)
                    top = record_top(server)
                    record_page(server, directory / "status.png")
                watched.cancel()
                client.jobs.train("digits", **JOB, epochs=60, id="weekly")
                watch = record_watch(server, "weekly")
                plot = record_plot(server, "weekly")
        output.mkdir(parents=True, exist_ok=True)
        compress(directory / "status.png", output / "status.png")
        print(f"wrote {output / 'status.png'}")
    for name, pictures in (("top", top), ("watch", watch), ("plot", plot)):
        (output / f"{name}.svg").write_text(svg(pictures))
        print(f"wrote {output / name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
