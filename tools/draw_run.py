"""Records `shmtree run` on the program of docs/run.md, as an animated SVG: `python tools/draw_run.py docs/run.svg`.

Runs the program with Python, with `shmtree run --profile` and with `shmtree run`, and draws what each prints.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs/run.md"
COMMANDS = ["time python frames.py", "shmtree run --profile frames.py", "shmtree run frames.py"]
SECONDS = 20.0  # of the recording; each command has an equal share
CHARACTER, LINE = 6.65, 18  # pixels
STYLE = """
    text { font: 11px ui-monospace, Menlo, "DejaVu Sans Mono", monospace; fill: #1f2328; }
    .command { font-weight: bold; }
    .card { fill: #ffffff; stroke: #d0d7de; }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc; }
      .card { fill: #0d1117; stroke: #3d444d; }
    }
    @media (prefers-reduced-motion: no-preference) {
      text { animation: appear 0.01s both; }
      @keyframes appear { from { opacity: 0; } to { opacity: 1; } }
    }
"""


def output_of(command: str, folder: str) -> list[str]:
    """Returns the lines that a command prints. "time" is of this script: it adds the seconds."""
    words = command.split()
    is_timed = words[0] == "time"
    started = [sys.executable, *words[2:]] if is_timed else [sys.executable, "-m", *words]
    began = time.monotonic()
    done = subprocess.run(started, cwd=folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = done.stdout.splitlines()
    return [*lines, f"{time.monotonic() - began:.2f} s"] if is_timed else lines


def drawn(sessions: list[tuple[str, list[str]]]) -> str:
    """Returns the SVG: each command appears, and its output two seconds later."""
    rows: list[tuple[str, str, float]] = []
    for number, (command, lines) in enumerate(sessions):
        at = number * SECONDS / len(sessions)
        rows.append((f"$ {command}", "command", at))
        rows += [(line, "output", at + 2) for line in lines]
        rows.append(("", "output", at))
    width = round(max(len(text) for text, _, _ in rows) * CHARACTER) + 32
    height = len(rows) * LINE + 16
    texts = "\n".join(
        f'  <text xml:space="preserve" class="{kind}" x="16" y="{(place + 1) * LINE + 4}" '
        f'style="animation-delay: {at:.1f}s">{escape(text)}</text>'
        for place, (text, kind, at) in enumerate(rows)
        if text
    )
    title = "A program with standard queues, what shmtree would save, and what it saves"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img">\n  <title>{title}</title>\n  <style>{STYLE}  </style>\n'
        f'  <rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>\n{texts}\n</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    found = re.search(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "frames.py").write_text(found[1])
        path.write_text(drawn([(command, output_of(command, folder)) for command in COMMANDS]))


if __name__ == "__main__":
    main()
