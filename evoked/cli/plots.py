"""Pictures of sweeps: heat maps where two keys of one policy vary, curves otherwise."""

from __future__ import annotations

import math
from typing import Any, Protocol

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from evoke.policy.traces import Trace
from evoked.cli.simulate import Row

__all__ = ["GridLike", "draw"]

LINES_MAX = 12  # more cannot be told apart
PANELS_MAX = 12
_COLOURS = [matplotlib.colormaps["tab10"](i) for i in range(10)] + ["black", "grey"]
_MARKERS = "osD^vP*Xph<>"


class GridLike(Protocol):
    """Of evoked.cli.sweep: a SPEC with several values per key."""

    text: str
    axes: dict[str, tuple[str, ...]]
    specs: dict[tuple[str, ...], str]


def draw(path: str, grids: list[Any], rows: list[Row], trace: Trace) -> None:
    """Prefix hits of the rows of these grids as a PNG. ValueError: more than can be shown."""
    if len(grids) == 1 and len(grids[0].axes) == 2:
        figure = _heat_maps(grids[0], rows)
    elif len(grids) == 1 and len(grids[0].axes) == 1:
        figure = _by_key(grids[0], rows, trace)
    else:
        figure = _by_capacity(rows, trace)
    figure.savefig(path, dpi=130)


def _percent(row: Row) -> float:
    return 100 * row.prefix_hits / row.accesses


def _size_text(blocks: int | None) -> str:
    return "no capacity" if blocks is None else f"{blocks:,} blocks"


def _name(row: Row) -> str:
    return row.trace.rpartition("/")[2]


# ---------------------------------------------------------------- heat maps


def _heat_maps(grid: GridLike, rows: list[Row]) -> Figure:
    """A panel for each capacity; the first key goes down, the second across."""
    capacities = list(dict.fromkeys(row.capacity_blocks for row in rows))
    if len(capacities) > PANELS_MAX:
        raise ValueError(f"plot: {len(capacities)} capacities, at most {PANELS_MAX}")
    (down, down_values), (across, across_values) = grid.axes.items()
    across_count = 2 if len(capacities) == 4 else min(3, len(capacities))
    down_count = math.ceil(len(capacities) / across_count)
    width = across_count * max(3.2, 0.75 * len(across_values) + 1.6)
    height = down_count * max(2.6, 0.36 * len(down_values) + 1.2) + 0.6
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(f"Prefix hits, % of accesses: {_name(rows[0])}\n{grid.text}", fontsize=9)
    found = {(row.policy, row.capacity_blocks): _percent(row) for row in rows}
    for at, capacity in enumerate(capacities):
        panel = figure.add_subplot(down_count, across_count, at + 1)
        values = [[found[grid.specs[d, a], capacity] for a in across_values] for d in down_values]
        _heat_map(panel, values)
        panel.set_title(_size_text(capacity), fontsize=9)
        panel.set_xticks(range(len(across_values)), across_values, fontsize=8)
        panel.set_yticks(range(len(down_values)), down_values, fontsize=8)
        panel.set_xlabel(across, fontsize=9)
        panel.set_ylabel(down, fontsize=9)
    return figure


def _heat_map(panel: Any, values: list[list[float]]) -> None:
    flat = [value for line in values for value in line]
    low, high = min(flat), max(flat)
    panel.imshow(values, cmap="viridis", aspect="auto", vmin=low, vmax=max(high, low + 0.1))
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            is_dark = value < (low + high) / 2 or high - low < 0.05
            weight = "bold" if value == high else "normal"
            panel.text(x, y, f"{value:.1f}", ha="center", va="center", fontsize=8,
                       color="white" if is_dark else "black", weight=weight)  # fmt: skip


# ---------------------------------------------------------------- curves


def _by_key(grid: GridLike, rows: list[Row], trace: Trace) -> Figure:
    """One key varies: it goes across, one line for each capacity."""
    ((key, texts),) = grid.axes.items()
    figure, panel = _panel(rows, grid.text)
    capacities = list(dict.fromkeys(row.capacity_blocks for row in rows))
    _check_lines(len(capacities))
    found = {(row.policy, row.capacity_blocks): _percent(row) for row in rows}
    numbers = _numbers(texts)
    places = numbers if numbers is not None else list(range(len(texts)))
    for at, capacity in enumerate(capacities):
        heights = [found[grid.specs[(text,)], capacity] for text in texts]
        _line(panel, at, places, heights, _size_text(capacity))
    if numbers is None:
        panel.set_xticks(places, texts)
    else:
        _log_ticks(panel, numbers)
    panel.set_xlabel(key)
    _finish(panel, trace)
    return figure


def _by_capacity(rows: list[Row], trace: Trace) -> Figure:
    """The capacity goes across, one line for each SPEC; with one capacity, bars."""
    figure, panel = _panel(rows, "")
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row.policy, []).append(row)
    _check_lines(len(lines))
    sizes = sorted({row.capacity_blocks for row in rows if row.capacity_blocks is not None})
    if len(sizes) < 2:
        _bars(panel, rows)
        return figure
    for at, (policy, found) in enumerate(lines.items()):
        shown = sorted((r.capacity_blocks, _percent(r)) for r in found if r.capacity_blocks)
        if shown:
            _line(panel, at, [x for x, _ in shown], [y for _, y in shown], policy)
        else:
            panel.axhline(_percent(found[0]), color=_COLOURS[at], linestyle=":", label=policy)
    _log_ticks(panel, [float(size) for size in sizes])
    panel.set_xlabel(f"capacity, blocks (the trace has {trace.identities:,})")
    _finish(panel, trace)
    return figure


def _panel(rows: list[Row], subtitle: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(7.6, 4.6), layout="constrained")
    panel = figure.add_subplot()
    panel.set_title(f"Prefix hits: {_name(rows[0])}" + f"\n{subtitle}" * bool(subtitle), fontsize=9)
    panel.set_ylabel("prefix hits, % of accesses")
    return figure, panel


def _check_lines(count: int) -> None:
    if count > LINES_MAX:
        raise ValueError(f"plot: {count} lines, at most {LINES_MAX} can be told apart")


def _numbers(texts: tuple[str, ...]) -> list[float] | None:
    """For a logarithmic axis; None when one is no number above 0."""
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return None
    return numbers if all(number > 0 for number in numbers) else None


def _line(panel: Any, at: int, across: Any, heights: list[float], label: str) -> None:
    # Later lines are thinner, so that one that lies on another hides nothing.
    width = max(1.2, 4 - 0.6 * at)
    panel.plot(across, heights, marker=_MARKERS[at], color=_COLOURS[at], markersize=width + 3.5,
               linewidth=width, label=label)  # fmt: skip


def _log_ticks(panel: Any, numbers: list[float]) -> None:
    panel.set_xscale("log")
    panel.set_xticks(numbers, [f"{number:,g}" for number in numbers], fontsize=8)
    panel.xaxis.set_minor_formatter(NullFormatter())


def _bars(panel: Any, rows: list[Row]) -> None:
    names = [row.policy for row in rows][::-1]
    bars = panel.barh(names, [_percent(row) for row in rows][::-1])
    panel.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    panel.set_ylabel("")
    panel.set_xlabel("prefix hits, % of accesses")
    panel.tick_params(axis="y", labelsize=8)
    panel.margins(x=0.12)


def _finish(panel: Any, trace: Trace) -> None:
    best = 100 * (1 - trace.identities / trace.accesses)
    panel.axhline(best, color="0.6", linewidth=1, linestyle="--")
    panel.annotate(f"no capacity limit: {best:.1f}", (0.01, best), color="0.4", fontsize=8,
                   xycoords=("axes fraction", "data"), va="bottom")  # fmt: skip
    panel.set_ylim(bottom=0, top=best * 1.08)
    panel.grid(alpha=0.25)
    panel.legend(fontsize=8, framealpha=0.9)
