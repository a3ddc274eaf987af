"""What the scrapes of one cell say: counters over the window and the cell, gauges over time, how complete they are."""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from loadtest.merge.join import FloatArray, IntArray, combine
from loadtest.server.counters import Deltas, Snapshot, canonical, subtract
from loadtest.server.scrapes import SCRAPE_OK
from loadtest.server.spec_counters import ACCEPTED, DRAFT_TOKENS, DRAFTS, histogram_bounds

EDGES = ("idle_start", "window_start", "window_end", "idle_end")

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_CACHE = "vllm:kv_cache_usage_perc"
KV_CACHE_V0 = "vllm:gpu_cache_usage_perc"
GENERATION_TOKENS = "vllm:generation_tokens_total"
PREEMPTIONS = "vllm:num_preemptions_total"
PREFIX_QUERIES = "vllm:prefix_cache_queries_total"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
}

_GAUGES = (RUNNING, WAITING, KV_CACHE, KV_CACHE_V0)
_WATCHED = (GENERATION_TOKENS, DRAFTS, DRAFT_TOKENS, ACCEPTED)
_WANTED = pa.array([*_GAUGES, *_WATCHED, *(m.removesuffix("_total") for m in _WATCHED), SCRAPE_OK])

SeriesId = tuple[str, str | None, str | None, str]  # endpoint, engine, model, labels


@dataclass(slots=True)
class _Series:
    t: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass(slots=True)
class ServerView:
    """Built batch by batch from server.arrows; keeps edges, a few gauges and scrape times, so it stays small."""

    edges: dict[str, Snapshot] = field(default_factory=dict)
    edge_errors: list[str] = field(default_factory=list)
    rows: int = 0
    scrape_errors: int = 0
    _gauges: dict[str, dict[SeriesId, _Series]] = field(default_factory=lambda: defaultdict(dict))
    _ok_times: dict[str, list[int]] = field(default_factory=dict)
    _steady_times: dict[str, list[int]] = field(default_factory=dict)
    """Good scrapes of the 1 Hz recording, without the edges."""
    _offsets: tuple[int, int] | None = None
    _last: dict[tuple[str, SeriesId], tuple[float, int]] = field(default_factory=dict)
    """Value and the moment of its answer."""
    _falls: set[str] = field(default_factory=set)

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes one batch of SCRAPE_SCHEMA."""
        self.rows += batch.num_rows
        wanted = pc.or_(pc.is_valid(batch.column("edge")), pc.is_in(batch.column("metric"), value_set=_WANTED))
        for row in batch.filter(wanted).to_pylist():
            if row["edge"] is not None:
                self.edges.setdefault(row["edge"], Snapshot()).add_row(row)
            if row["metric"] == SCRAPE_OK:
                self._add_scrape(row)
            elif row["value"] is not None:
                self._add_value(row)

    def _add_scrape(self, row: dict[str, object]) -> None:
        endpoint, t, mono = str(row["endpoint"]), int(str(row["t_ns"])), int(str(row["mono_ns"]))
        low, high = self._offsets or (t - mono, t - mono)
        self._offsets = min(low, t - mono), max(high, t - mono)
        self._ok_times.setdefault(endpoint, [])
        self._steady_times.setdefault(endpoint, [])
        if row["value"]:
            self._ok_times[endpoint].append(t)
            if row["edge"] is None:
                self._steady_times[endpoint].append(t)
            return
        self.scrape_errors += 1
        if row["edge"] is not None:
            self.edge_errors.append(f"{row['edge']} {endpoint}: {row['error'] or 'no reason recorded'}")

    def _add_value(self, row: dict[str, object]) -> None:
        metric = canonical(str(row["metric"]), None if row["kind"] is None else str(row["kind"]))
        value = float(str(row["value"]))
        engine = None if row["engine"] is None else str(row["engine"])
        model = None if row["model"] is None else str(row["model"])
        series: SeriesId = (str(row["endpoint"]), engine, model, str(row["labels"]))
        if metric in _GAUGES:
            held = self._gauges[metric].setdefault(series, _Series())
            held.t.append(int(str(row["t_ns"])))
            held.values.append(value)
        elif metric in _WATCHED:
            answered_ns, asked_ns = int(str(row["t_ns"])), int(str(row["t_request_ns"]))
            last, last_answered_ns = self._last.get((metric, series), (0.0, 0))
            if value < last:
                if asked_ns < last_answered_ns:
                    return  # an edge and the 1 Hz scrape overlapped: their answers have no order
                self._falls.add(f"{series[0]} engine={engine if engine is not None else '?'}")
            self._last[metric, series] = value, answered_ns

    @property
    def endpoints(self) -> list[str]:
        """Every endpoint that was asked."""
        return sorted(self._ok_times)

    def span(self, start: str, end: str) -> Deltas | None:
        """Counter growth between two edges; None where an edge was never scraped."""
        if start not in self.edges or end not in self.edges:
            return None
        return subtract(self.edges[start], self.edges[end])

    def resets(self, *spans: Deltas | None) -> list[str]:
        """`<endpoint> engine=<n>` of every counter that fell, at the edges or between two 1 Hz scrapes."""
        return sorted(self._falls.union(*(set(s.resets) for s in spans if s is not None)))

    def gauge(self, metric: str, at: IntArray) -> FloatArray:
        """Gauge at each moment: sum over engines and endpoints, for the KV cache the highest; NaN = unknown."""
        chosen = self._gauges.get(metric) or (self._gauges.get(KV_CACHE_V0, {}) if metric == KV_CACHE else {})
        arrays = []
        for held in chosen.values():
            t = np.asarray(held.t, dtype=np.int64)
            order = np.argsort(t, kind="stable")
            arrays.append((t[order], np.asarray(held.values, dtype=np.float64)[order]))
        return combine(at, arrays, np.maximum if metric == KV_CACHE else np.add)

    def state_at(self, at: IntArray) -> dict[str, FloatArray]:
        """`running`, `waiting`, `kv_cache_usage` at each moment (UNIX ns); NaN = unknown."""
        return {name: self.gauge(m, at) for name, m in _STATE.items()}

    def scrape_times(self, start_ns: int, end_ns: int) -> IntArray:
        """Moments of the good 1 Hz scrapes inside a span, all endpoints together, sorted."""
        times = np.array(sorted(t for ts in self._steady_times.values() for t in ts), dtype=np.int64)
        return times[(times >= start_ns) & (times <= end_ns)]

    def completeness(self, start_ns: int, end_ns: int) -> tuple[int, int, float | None]:
        """(scrapes expected at 1 Hz, good ones, longest silence of any endpoint in s) inside a span."""
        expected = len(self._ok_times) * int((end_ns - start_ns) // 1_000_000_000)
        good = len(self.scrape_times(start_ns, end_ns))
        longest = None
        for times in self._ok_times.values():
            inside = sorted(min(max(t, start_ns), end_ns) for t in times)
            ends = np.diff(np.array([start_ns, *inside, end_ns], dtype=np.int64))
            longest = max(longest or 0.0, float(ends.max()) / 1e9)
        return expected, good, longest

    @property
    def clock_step_us(self) -> float | None:
        """Largest change of (wall clock - monotonic clock) over the cell."""
        return None if self._offsets is None else (self._offsets[1] - self._offsets[0]) / 1000


_STATE = {"running": RUNNING, "waiting": WAITING, "kv_cache_usage": KV_CACHE}


def mean_or_none(values: npt.NDArray[np.float64]) -> float | None:
    """Mean of what is known; None where nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def server_quantiles(window: Deltas | None) -> dict[str, float | None]:
    """`server_<metric>_<q>_<lo|hi>_us`: bounds of the bucket that holds the quantile, None without a bound."""
    out: dict[str, float | None] = {}
    for name, family in HISTOGRAMS.items():
        for label, q in (("p95", 0.95), ("p99", 0.99)):
            bounds = None if window is None else histogram_bounds(window, family, q)
            low, high = bounds or (None, None)
            out[f"server_{name}_{label}_lo_us"] = None if low is None else low * 1e6
            out[f"server_{name}_{label}_hi_us"] = None if high is None else high * 1e6
    return out
