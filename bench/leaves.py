"""Measures messages with common classes of other packages and of the standard library.

`docs/benchmark-tables.md` has the resulting table. `./dev bench 'leaf-*'` prints it again.
"""

from __future__ import annotations

import array
import collections
import functools
import importlib
import io
import pickle
import re
import types
from collections.abc import Callable
from typing import Any

import numpy as np

Make = Callable[[int], Any]  # makes a value of about that many bytes


def _of(package: str) -> Any:
    return importlib.import_module(package)


def _random(count: int) -> Any:
    return np.random.default_rng(0).random(count)


def _square(nbytes: int, channels: int) -> Any:
    side = int((nbytes / channels) ** 0.5)
    return np.random.default_rng(0).integers(0, 255, (side, side, channels), dtype=np.uint8)


def _counter(nbytes: int) -> Any:
    return collections.Counter({i if i % 2 else f"key {i}": i for i in range(nbytes // 64)})


def _array(nbytes: int) -> Any:
    return array.array("d", _random(nbytes // 8))


def _namespace(nbytes: int) -> Any:
    return types.SimpleNamespace(obs=_random(nbytes // 8), reward=1.0, info={"episode": "ep-12"})


@functools.cache
def _attrs_class() -> Any:
    return _named(_of("attrs").make_class("AttrsStep", ["obs", "reward", "info"]))


@functools.cache
def _model_class() -> Any:
    return _named(_of("pydantic").create_model("ModelStep", obs=(Any, ...), reward=(float, ...), info=(dict, ...)))


def _named(cls: type) -> type:
    """Makes the class a global of this module, so that pickle finds it by its name."""
    cls.__module__, cls.__qualname__ = __name__, cls.__name__
    globals()[cls.__name__] = cls
    return cls


def _attrs(nbytes: int) -> Any:
    return _attrs_class()(_random(nbytes // 8), 1.0, {"episode": "ep-12"})


def _model(nbytes: int) -> Any:
    return _model_class()(obs=_random(nbytes // 8), reward=1.0, info={"episode": "ep-12"})


def _sparse(nbytes: int) -> Any:
    stored, rows = nbytes // 12, max(nbytes // 128, 4)
    return _of("scipy.sparse").random(rows, rows, density=min(1.0, stored / rows**2), format="csr", random_state=0)


def _polars(nbytes: int) -> Any:
    return _of("polars").DataFrame({"a": _random(nbytes // 16), "b": np.arange(nbytes // 16)})


def _polars_series(nbytes: int) -> Any:
    return _of("polars").Series("a", _random(nbytes // 8))


def _image(nbytes: int) -> Any:
    return _of("PIL.Image").fromarray(_square(nbytes, 3))


def _xarray(nbytes: int) -> Any:
    return _of("xarray").DataArray(_random(nbytes // 80 * 10).reshape(-1, 10), dims=("time", "x"), name="v")


def _arrow(nbytes: int) -> Any:
    return _of("pyarrow").table({"a": _random(nbytes // 16), "b": np.arange(nbytes // 16)})


def _pandas(nbytes: int) -> Any:
    return _of("pandas").DataFrame({"a": _random(nbytes // 16), "b": np.arange(nbytes // 16)})


LEAVES: dict[str, tuple[str, Make]] = {
    "counter": ("Counter of mixed keys", _counter),
    "array": ("array.array", _array),
    "namespace": ("SimpleNamespace", _namespace),
    "attrs": ("class of attrs", _attrs),
    "pydantic": ("model of pydantic", _model),
    "scipy": ("scipy.sparse matrix", _sparse),
    "polars": ("polars DataFrame", _polars),
    "polars-series": ("polars Series", _polars_series),
    "pillow": ("PIL image", _image),
    "xarray": ("xarray DataArray", _xarray),
    "arrow": ("Arrow table", _arrow),
    "pandas": ("pandas DataFrame", _pandas),
}


@functools.cache
def made(name: str, nbytes: int) -> Any:
    return LEAVES[name][1](nbytes)


def same(a: Any, b: Any) -> bool:
    """Compares the pickles and the buffers of two values, because each package compares values differently."""
    return _contents(a) == _contents(b)


def _contents(value: Any) -> tuple[bytes, list[bytes]]:
    if hasattr(value, "model_fields_set"):
        value = vars(value)  # without the set, which may have another order
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, 5, buffer_callback=buffers.append)
    # A pickle depends on which of its equal objects are identical. A round trip evens out such differences.
    again = pickle.dumps(pickle.loads(data, buffers=buffers), 5, buffer_callback=lambda buffer: None)
    return again, [bytes(buffer.raw()) for buffer in buffers]


def way(value: Any) -> str:
    """Returns how the value is sent: natively, or as a pickle with its memory out of band or inside."""
    import shmtree

    text = io.StringIO()
    shmtree.describe(shmtree.pack(value), file=text)
    tree = text.getvalue().splitlines()
    if not re.match("(long_)?pickle ", tree[1]):
        return "native"
    return "pickle, memory next to it" if any(line.lstrip().startswith("array") for line in tree[2:]) else "pickle"


def table(rows: list[dict[str, Any]]) -> str:
    """Returns rows of type, way, and speed of a pair and a queue relative to multiprocessing.Queue at each size."""
    names = [name for name in LEAVES if any(row["workload"].startswith(f"leaf-{name}-") for row in rows)]
    head = (
        "| type | travels as | pair, 1 KB | Queue, 1 KB | pair, 1 MB | Queue, 1 MB |\n|---|---|---:|---:|---:|---:|\n"
    )
    parts = []
    for title, key in (("messages per second", "items_per_s"), ("CPU of both sides per message", "cpu_us_per_item")):
        figures = {(row["workload"], row["competitor"]): row[key] for row in rows if key in row}
        lines = "".join(_line(name, figures, is_cost=key == "cpu_us_per_item") for name in names)
        parts.append(f"### Common leaves, times better than multiprocessing.Queue: {title}\n\n{head}{lines}")
    return "\n".join(parts) if names else ""


def _line(name: str, figures: dict[tuple[str, str], float], is_cost: bool) -> str:
    ratios = []
    for size in ("1KB", "1MB"):
        base = figures.get((f"leaf-{name}-{size}", "multiprocessing.Queue"))
        for ours in ("shmtree", "shmtree.Queue"):
            figure = figures.get((f"leaf-{name}-{size}", ours))
            ratios.append("" if not figure or not base else f"{base / figure if is_cost else figure / base:.1f}")
    try:
        travels = way(made(name, 1_000_000))
    except ImportError:
        travels = "not installed"
    return f"| {LEAVES[name][0]} | {travels} | {' | '.join(ratios)} |\n"
