"""The look of all charts: one colour per library, text that stays text, and dark variants of ink and background."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

INK, PAPER, GRID = "#1f2328", "#ffffff", "#d0d7de"
DARK = {INK: "#f0f6fc", PAPER: "#0d1117", GRID: "#3d444d"}
BOUND = "#8b949e"  # of measurements that are no libraries
#: Colours that are legible on both backgrounds. Charts show only these competitors; the tables have all.
COLOURS = {
    "shmtree": "#2f81f7",
    "multiprocessing.Queue": "#e16f24",
    "torch.multiprocessing": "#b08800",
    "faster-fifo": "#2da44e",
    "pyzmq": "#a475f9",
    "iceoryx2": "#e5534b",
    "SPDL ring": "#2da44e",
    "SPDL pool": "#a475f9",
    "queue": "#e16f24",
    "cpprb": "#e16f24",
    "TorchRL": "#e5534b",
    "Stable-Baselines3": "#2da44e",
    "Reverb": "#a475f9",
}

pyplot.rcParams.update(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "shmtree",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans", "Segoe UI", "sans-serif"],
        "font.size": 11,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": GRID,
        "axes.facecolor": PAPER,
        "figure.facecolor": PAPER,
        "xtick.color": INK,
        "ytick.color": INK,
        "grid.color": GRID,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
)


def style(name: str) -> dict[str, Any]:
    """Returns the line of a competitor."""
    return {"color": COLOURS[name], "linewidth": 3 if name == "shmtree" else 1.8, "marker": "o", "markersize": 4}


def amount(value: float, unit: str = "") -> str:
    """Formats the value of a tick: 1, 10 k, 1 MB."""
    for limit, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "K" if unit == "B" else "k")):
        if value >= limit:
            return f"{value / limit:g} {prefix}{unit}"
    return f"{value:g} {unit}".strip()


def name_ticks(axis: Any, unit: str = "", step: int = 1) -> None:
    """Labels each `step`-th power of ten on a logarithmic axis, and leaves out the marks between them."""
    axis.set_major_locator(matplotlib.ticker.LogLocator(10.0**step, numticks=20))
    axis.set_major_formatter(lambda value, _: amount(value, unit))
    axis.set_minor_locator(matplotlib.ticker.NullLocator())


def label_lines(axis: Any, ends: dict[str, float], gap: float = 13) -> None:
    """Writes each name to the right of the plot, at the height of its last value, `gap` points or more apart."""
    axis.figure.canvas.draw()
    points = 72 / axis.figure.dpi
    lowest = float("-inf")
    for name, y in sorted(ends.items(), key=lambda end: end[1]):
        height = axis.transData.transform((1, y))[1] * points
        shift = max(0, lowest + gap - height)
        lowest = height + shift
        axis.annotate(
            name,
            (1.02, y),
            (0, shift),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            color=COLOURS.get(name, BOUND),
            annotation_clip=False,
        )


def save(figure: Any, path: Path) -> None:
    """Writes the figure. An SVG without a date, with the dark colours for readers that prefer them."""
    figure.savefig(path, bbox_inches="tight", pad_inches=0.15, metadata={"Date": None} if path.suffix == ".svg" else {})
    pyplot.close(figure)
    if path.suffix == ".svg":
        rules = "".join(
            f'[style*="{part}: {light}"]{{{part}: {dark} !important}}'
            for light, dark in DARK.items()
            for part in ("fill", "stroke")
        )
        text = path.read_text().replace("</style>", f"@media (prefers-color-scheme: dark){{{rules}}}</style>", 1)
        path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")
