"""Prometheus text of the one registry. Imported when somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from evoked.counters import HELP
from evoked.histograms import HISTOGRAMS, Histograms

__all__ = ["text"]

_STATES: Final = {"green": 0.0, "yellow": 1.0, "red": 2.0}


def text(state: dict[str, Any], histograms: Histograms) -> str:
    """`state` is the status snapshot: the same numbers in another form."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(state, histograms))
    return generate_latest(registry).decode()


class _Collector:
    def __init__(self, state: dict[str, Any], histograms: Histograms) -> None:
        self._state, self._histograms = state, histograms

    def collect(self) -> Iterator[Metric]:
        state = self._state
        yield InfoMetricFamily(
            "evoke", "the daemon", {"version": state["version"], "boot_id": state["boot_id"]}
        )
        for name, value in state["counters"].items():
            yield CounterMetricFamily(f"evoke_{name}", HELP[name], value)
        yield from self._gauges()
        for name, histogram in self._histograms.items():
            help_text = HISTOGRAMS[name][0]
            metric_name = f"evoke_{name.removesuffix('_s')}_seconds"
            yield HistogramMetricFamily(
                metric_name, help_text, histogram.cumulative(), sum_value=histogram.total
            )

    def _gauges(self) -> Iterator[Metric]:
        state = self._state
        for key, help_text in (
            ("uptime_s", "seconds since start"),
            ("grants", "reservations and pins held now"),
            ("transfers", "copies under way now"),
            ("metadata_bytes", "memory of index and published table"),
            ("memory_besides_arenas_bytes", "resident memory of the daemon without its arenas"),
        ):
            yield GaugeMetricFamily(f"evoke_{key}", help_text, state[key])
        yield GaugeMetricFamily(
            "evoke_policy_version", "of the policy in force", state["policy_version"]
        )
        yield GaugeMetricFamily("evoke_sessions", "sessions open now", len(state["sessions"]))
        for key in ("capacity_bytes", "used_bytes", "blocks"):
            family = GaugeMetricFamily(f"evoke_tier_{key}", f"{key} of a tier", labels=["tier"])
            for tier in state["tiers"]:
                family.add_metric([tier["name"]], tier[key])
            yield family
        health = GaugeMetricFamily(
            "evoke_thread_health", "0 green, 1 yellow, 2 red", labels=["thread"]
        )
        for thread in state["health"]["threads"]:
            health.add_metric([thread["name"]], _STATES[thread["state"]])
        yield health
