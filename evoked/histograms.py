"""Distributions that metrics and status share: counts in fixed buckets, and their sum."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

__all__ = ["HISTOGRAMS", "Histogram", "Histograms"]

_LATENCY_S: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_AGE_S: Final = (1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
# name -> (help, upper bounds of the buckets)
HISTOGRAMS: Final[dict[str, tuple[str, tuple[float, ...]]]] = {
    "store_small_s": ("seconds of stores below 1 MiB, request to reply", _LATENCY_S),
    "store_medium_s": ("seconds of stores of 1 to 64 MiB", _LATENCY_S),
    "store_large_s": ("seconds of stores of 64 MiB and more", _LATENCY_S),
    "fetch_small_s": ("seconds of fetches below 1 MiB, request to reply", _LATENCY_S),
    "fetch_medium_s": ("seconds of fetches of 1 to 64 MiB", _LATENCY_S),
    "fetch_large_s": ("seconds of fetches of 64 MiB and more", _LATENCY_S),
    "grant_held_s": ("seconds that reservations and pins were held", _LATENCY_S + _AGE_S[1:4]),
}


class Histogram:
    """counts[i] is the number of values up to bounds[i] (and above bounds[i-1]); the last: more."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' form: (upper bound, number of values at or below it)."""
        rows, below = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            below += count
            rows.append(("+Inf" if bound == float("inf") else repr(bound), float(below)))
        return rows


class Histograms(dict[str, Histogram]):
    """One of each name in HISTOGRAMS."""

    def __init__(self) -> None:
        super().__init__((name, Histogram(bounds)) for name, (_, bounds) in HISTOGRAMS.items())

    def transfer(self, verb: str, copy_bytes: int, seconds: float) -> None:
        small, large = copy_bytes < 1 << 20, copy_bytes >= 64 << 20
        size = "small" if small else "large" if large else "medium"
        self[f"{verb}_{size}_s"].add(seconds)
