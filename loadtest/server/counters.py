"""Differences between two scrapes. Pure; the merge imports it.

Every series (endpoint + metric + all labels) is subtracted by itself and only then summed: a restart of one engine, or
two replicas with the same labels, would otherwise vanish in the total. A series that was reset counts from zero to its
new value, which is a lower bound, and the endpoint and engine are named.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from loadtest.server.metrics import Page, Sample

Status = Literal["ok", "reset", "new", "vanished", "unknown"]

PROCESS_START = "process_start_time_seconds"
CUMULATIVE_SUFFIXES = ("_total", "_bucket", "_count", "_sum")
"""Names of samples that only grow, for pages whose TYPE lines are missing."""
_BARE = frozenset(
    f"vllm:{name}"
    for name in (
        *("spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"),
        *("spec_decode_num_accepted_tokens_per_pos", "spec_decode_num_emitted_tokens"),
        *("generation_tokens", "prompt_tokens", "num_preemptions", "request_success"),
        *("prefix_cache_queries", "prefix_cache_hits"),
    )
)
"""Counters that some versions and exporters write without `_total` and without a TYPE line."""


def canonical(metric: str, kind: str | None) -> str:
    """The name that a series is known by: counters end in `_total`, whatever the page calls them."""
    metric = metric.replace("vllm:gpu_prefix_cache_", "vllm:prefix_cache_")  # vLLM before 0.10
    if not metric.endswith((*CUMULATIVE_SUFFIXES, "_created", "_info")) and (kind == "counter" or metric in _BARE):
        return f"{metric}_total"
    return metric


class SeriesKey(NamedTuple):
    """Identity of a series. `labels` are sorted pairs without `engine` and `model_name`, which stand apart."""

    endpoint: str
    metric: str
    engine: str | None
    model: str | None
    labels: tuple[tuple[str, str], ...] = ()

    def label(self, name: str) -> str | None:
        """Value of a further label, None where the series has no such label."""
        return next((v for k, v in self.labels if k == name), None)


def series_key(endpoint: str, sample: Sample) -> SeriesKey:
    """The key of one sample scraped at `endpoint`."""
    rest = tuple(sorted((k, v) for k, v in sample.labels.items() if k not in ("engine", "model_name")))
    name = canonical(sample.name, sample.kind)
    return SeriesKey(endpoint, name, sample.labels.get("engine"), sample.labels.get("model_name"), rest)


@dataclass(slots=True)
class Snapshot:
    """All series of all endpoints at one edge. An endpoint that did not answer is in `failed`, never zero."""

    values: dict[SeriesKey, float] = field(default_factory=dict)
    """Finite values only; NaN and infinities are left out."""
    kinds: dict[str, str] = field(default_factory=dict)
    created: dict[SeriesKey, float] = field(default_factory=dict)
    """`*_created` series, UNIX seconds."""
    endpoints: set[str] = field(default_factory=set)
    """Endpoints that answered with a page."""
    failed: dict[str, str] = field(default_factory=dict)
    """Endpoint -> why its scrape failed."""
    unreadable: set[SeriesKey] = field(default_factory=set)
    """Series that are there without a value: NaN, infinite, or twice on one page with different values."""
    damaged: set[str] = field(default_factory=set)
    """Endpoints whose page had lines that could not be read: a series that is missing there may have existed."""

    _asked: dict[str, int] = field(default_factory=dict)

    def add_page(self, endpoint: str, page: Page) -> None:
        """Add what `parse_page` read at `endpoint`."""
        self.endpoints.add(endpoint)
        if page.broken_lines:
            self.damaged.add(endpoint)
        for sample in page.samples:
            key = series_key(endpoint, sample)
            self._put(self.values, key, sample.value)
            self.kinds.setdefault(key.metric, sample.kind)
        for sample in page.created:
            self._put(self.created, series_key(endpoint, sample), sample.value)

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Add one row of server.arrows (SCRAPE_SCHEMA); the `loadtest:scrape_ok` row says whether it worked."""
        endpoint = row["endpoint"]
        if row["metric"] == "loadtest:scrape_ok":
            if self._asked.setdefault(endpoint, row["t_ns"]) != row["t_ns"]:
                self._forget(endpoint)
                self._asked[endpoint] = row["t_ns"]
            if row["value"]:
                self.endpoints.add(endpoint)
                if row["error"]:
                    self.damaged.add(endpoint)
            else:
                self.failed[endpoint] = row["error"] or "no reason recorded"
            return
        labels = tuple(sorted(json.loads(row["labels"]).items())) if row["labels"] not in ("", "{}") else ()
        key = SeriesKey(endpoint, canonical(row["metric"], row["kind"]), row["engine"], row["model"], labels)
        value = math.nan if row["value"] is None else row["value"]
        self._put(self.created if key.metric.endswith("_created") else self.values, key, value)
        if row.get("kind"):
            self.kinds.setdefault(key.metric, row["kind"])

    def _forget(self, endpoint: str) -> None:
        """An edge that was scraped twice: the later page counts."""
        self.endpoints.discard(endpoint)
        self.failed.pop(endpoint, None)
        self.damaged.discard(endpoint)
        self.unreadable = {key for key in self.unreadable if key.endpoint != endpoint}
        for held in (self.values, self.created):
            for key in [key for key in held if key.endpoint == endpoint]:
                del held[key]

    def _put(self, target: dict[SeriesKey, float], key: SeriesKey, value: float) -> None:
        if math.isfinite(value) and key not in self.unreadable and target.get(key, value) == value:
            target[key] = value
        else:
            target.pop(key, None)
            self.unreadable.add(key)


def snapshot(pages: Mapping[str, Page], failed: Mapping[str, str] | None = None) -> Snapshot:
    """A snapshot of pages by endpoint; `failed` names the endpoints whose scrape did not work."""
    result = Snapshot(failed=dict(failed or {}))
    for endpoint, page in pages.items():
        result.add_page(endpoint, page)
    return result


@dataclass(frozen=True, slots=True)
class SeriesDelta:
    """Growth of one cumulative series. `delta` is None for a vanished or unknown one, a lower bound for a reset one."""

    key: SeriesKey
    before: float | None
    after: float | None
    delta: float | None
    status: Status


@dataclass(slots=True)
class Deltas:
    """Growth of every cumulative series between two snapshots."""

    series: dict[SeriesKey, SeriesDelta]
    resets: list[str]
    """`<endpoint> engine=<n>`, sorted: their deltas are lower bounds."""
    vanished: list[SeriesKey]
    """There at the start, not at the end; or without a value at one edge."""
    new: list[SeriesKey]
    missing: dict[str, str]
    """Endpoints without a page at one edge -> why. Sums over all endpoints are then unknown (None)."""
    endpoints: set[str]
    """Endpoints with a page at both edges."""

    def select(self, metric: str, where: Callable[[SeriesKey], bool] | None = None) -> list[SeriesDelta]:
        """The series of one sample name."""
        return [d for k, d in self.series.items() if k.metric == metric and (where is None or where(k))]

    def total(self, metric: str, where: Callable[[SeriesKey], bool] | None = None) -> float | None:
        """Sum over endpoints, engines and labels. None where no series exists, one vanished or an edge is missing."""
        chosen = self.select(metric, where)
        if not chosen or self.missing or any(d.delta is None for d in chosen):
            return None
        return sum(d.delta for d in chosen if d.delta is not None)


def subtract(before: Snapshot, after: Snapshot) -> Deltas:
    """Growth of every counter and histogram series from `before` to `after`.

    A reset is seen by a value that fell, a `_created` or process start that moved; it holds for all series of that
    endpoint and engine, because they live and die with one process.
    """
    missing = {e: f"at the start: {why}" for e, why in before.failed.items() if e not in before.endpoints}
    for endpoint, why in after.failed.items():
        if endpoint not in after.endpoints:
            missing[endpoint] = (
                f"{missing[endpoint]}; at the end: {why}" if endpoint in missing else f"at the end: {why}"
            )
    for endpoint in before.endpoints ^ after.endpoints:
        missing.setdefault(endpoint, f"no scrape at the {'end' if endpoint in before.endpoints else 'start'}")
    both = before.endpoints & after.endpoints
    reset_groups = _reset_groups(before, after, both)
    series: dict[SeriesKey, SeriesDelta] = {}
    for key in before.values.keys() | after.values.keys() | before.unreadable | after.unreadable:
        if key.endpoint in both and _is_cumulative(key.metric, before, after):
            was_reset = (key.endpoint, key.engine) in reset_groups or (key.endpoint, "*") in reset_groups
            old, new = before.values.get(key), after.values.get(key)
            born_unseen = old is None and key.endpoint in before.damaged
            if key in before.unreadable or key in after.unreadable or (born_unseen and not was_reset):
                series[key] = SeriesDelta(key, old, new, None, "unknown")
            else:
                series[key] = _series_delta(key, old, new, was_reset)
    return Deltas(
        series=series,
        resets=sorted(
            f"{endpoint} engine={engine if engine is not None else '?'}" for endpoint, engine in reset_groups
        ),
        vanished=sorted((k for k, d in series.items() if d.status in ("vanished", "unknown")), key=str),
        new=sorted((k for k, d in series.items() if d.status == "new"), key=str),
        missing=missing,
        endpoints=both,
    )


def _is_cumulative(metric: str, before: Snapshot, after: Snapshot) -> bool:
    kind = after.kinds.get(metric) or before.kinds.get(metric) or "unknown"
    if kind in ("counter", "histogram"):
        return True
    return kind in ("unknown", "summary") and metric.endswith(CUMULATIVE_SUFFIXES)


def _series_delta(key: SeriesKey, old: float | None, new: float | None, was_reset: bool) -> SeriesDelta:
    if new is None:
        return SeriesDelta(key, old, None, None, "vanished")
    if was_reset:
        return SeriesDelta(key, old, new, new, "reset")
    if old is None:
        # Prometheus clients create a labelled series at its first event: it began at zero inside the window.
        return SeriesDelta(key, None, new, new, "new")
    return SeriesDelta(key, old, new, new - old, "ok")


def _reset_groups(before: Snapshot, after: Snapshot, endpoints: set[str]) -> set[tuple[str, str | None]]:
    """(endpoint, engine) pairs that restarted; engine "*" when the whole process did."""
    groups: set[tuple[str, str | None]] = set()
    for key, old in before.created.items():
        new = after.created.get(key)
        if key.endpoint in endpoints and new is not None and new != old:
            groups.add((key.endpoint, key.engine))
    for key, old in before.values.items():
        new = after.values.get(key)
        if key.endpoint not in endpoints or new is None:
            continue
        if key.metric == PROCESS_START:
            if new != old:
                groups.add((key.endpoint, "*"))
        elif new < old and key.metric.startswith("vllm:") and _is_cumulative(key.metric, before, after):
            groups.add((key.endpoint, key.engine))
    return groups
