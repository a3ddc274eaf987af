"""One `[[slo]]` table, of a plan or of a file of its own, checked against the metric table."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from loadtest.model import Slo
from loadtest.plan.metrics import GOODPUT_METRICS, METRICS, RATIO_STAT, SELECTORS, Metric, stats_of
from loadtest.plan.units import parse_limit

LimitValue = str | int | float
"""A limit as it is written: "500ms", 0.01, "1%". Its unit depends on the metric."""


def did_you_mean(seen: object, known: list[str] | tuple[str, ...]) -> str:
    """`; did you mean "x"?` with the closest known word, or "." to end the sentence."""
    close = difflib.get_close_matches(str(seen), known, n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else "."


class SloEntry(BaseModel):
    """One criterion of the gate."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    metric: str = Field(description="What is judged, by its name in the metric table, for example `ttft`.")
    stat: str | None = Field(
        default=None,
        description="A quantile (`p50`, `p95`, `p99`, `p99.9`), `rate`, `pooled`, `goodput` or "
        "`median_ratio_to_baseline`. May be left out where the metric has only one.",
    )
    limit: LimitValue | None = Field(
        default=None,
        description="The bound, with a unit where the metric has one; its direction comes from the metric.",
    )
    max: LimitValue | None = Field(default=None, description="The same as `limit` for a metric where lower is better.")
    min: LimitValue | None = Field(default=None, description="The same as `limit` for a metric where higher is better.")
    confidence: float = Field(default=0.95, description="Confidence asked of the claim, above 0.5 and below 1.")
    where: dict[str, str] = Field(
        default_factory=dict,
        description="Which cells it holds for: globs over config, method, mix, sampling, stratum, load.",
    )
    limits: dict[str, LimitValue] = Field(
        default_factory=dict, description="For `goodput` only: limits that each good request keeps, metric to limit."
    )
    name: str | None = Field(default=None, min_length=1, description="Name in reports; made from the rest if left out.")

    @model_validator(mode="after")
    def _check(self) -> SloEntry:
        self.to_slo()
        return self

    @property
    def is_relative(self) -> bool:
        """True for a stat that compares with the baseline."""
        return self.stat == RATIO_STAT

    def to_slo(self) -> Slo:
        """The criterion in the metric's unit. Raises ValueError with everything that is wrong, joined by "; "."""
        metric = METRICS.get(self.metric)
        if metric is None:
            hint = did_you_mean(self.metric, list(METRICS))
            raise ValueError(f'"{self.metric}" is no metric{hint} Known: {", ".join(METRICS)}')
        problems: list[str] = []
        stat = self._stat(metric, problems)
        bound = self._bound(metric, stat, problems)
        limits = self._limits(metric, problems)
        if not 0.5 < self.confidence < 1:  # NaN fails too
            problems.append(f"confidence = {self.confidence!r}: must be above 0.5 and below 1, for example 0.95")
        for key in self.where:
            if key not in SELECTORS:
                hint = did_you_mean(key, SELECTORS)
                problems.append(f'where: "{key}" is no selector{hint} Known: {", ".join(SELECTORS)}')
        if problems or stat is None or bound is None:
            raise ValueError("; ".join(problems))
        lower_is_better = metric.direction == "lower"
        return Slo(
            name=self.name or self.default_name(),
            metric=metric.name,
            stat=stat,
            max=bound if lower_is_better else None,
            min=None if lower_is_better else bound,
            confidence=self.confidence,
            where=dict(self.where),
            limits=limits,
        )

    def default_name(self) -> str:
        """`ttft p99 <= 500ms [mix=code]`: unique for criteria that differ."""
        metric = METRICS[self.metric]
        stat = self._stat(metric, []) or ""
        bound = next(v for v in (self.limit, self.max, self.min) if v is not None)
        parts = [metric.name] if stat in (metric.name, "rate", "pooled") else [metric.name, stat]
        parts += ["<=" if metric.direction == "lower" else ">=", str(bound)]
        if self.limits:
            parts.append("of " + " and ".join(f"{k} <= {v}" for k, v in self.limits.items()))
        if self.where:
            parts.append("[" + ", ".join(f"{k}={v}" for k, v in self.where.items()) + "]")
        return " ".join(parts)

    def _stat(self, metric: Metric, problems: list[str]) -> str | None:
        if self.stat is None:
            own = [s for s in metric.stats if s != RATIO_STAT]
            if len(own) == 1 and own[0] != "quantile":
                return own[0]
            problems.append(f"stat is missing; for {metric.name} write {stats_of(metric)}")
            return None
        if not metric.allows(self.stat):
            problems.append(f'stat = "{self.stat}" does not suit {metric.name}; write {stats_of(metric)}')
            return None
        return self.stat

    def _bound(self, metric: Metric, stat: str | None, problems: list[str]) -> float | None:
        given = {k: v for k in ("limit", "max", "min") if (v := getattr(self, k)) is not None}
        right, wrong = ("max", "min") if metric.direction == "lower" else ("min", "max")
        if len(given) != 1:
            seen = " and ".join(f"{k} = {v!r}" for k, v in given.items()) or "none"
            problems.append(f"write exactly one of limit, {right}; seen: {seen}")
            return None
        key, value = next(iter(given.items()))
        if key == wrong:
            problems.append(
                f"{key} = {value!r}: {metric.name} is better when {metric.direction}; write {right} or limit"
            )
            return None
        return _parsed(key, value, metric, stat or "", problems)

    def _limits(self, metric: Metric, problems: list[str]) -> dict[str, float]:
        if metric.name != "goodput":
            if self.limits:
                problems.append(f"limits: only goodput takes them, not {metric.name}")
            return {}
        if not self.limits:
            problems.append('limits is missing; for example limits = { ttft = "500ms", tpot = "50ms" }')
        limits: dict[str, float] = {}
        for name, value in self.limits.items():
            if name not in GOODPUT_METRICS:
                hint = did_you_mean(name, GOODPUT_METRICS)
                problems.append(f'limits: "{name}" has no value per request{hint} Known: {", ".join(GOODPUT_METRICS)}')
                continue
            parsed = _parsed(f"limits.{name}", value, METRICS[name], "p50", problems)
            if parsed is not None:
                limits[name] = parsed
        return limits


def _parsed(key: str, value: Any, metric: Metric, stat: str, problems: list[str]) -> float | None:
    try:
        return parse_limit(value, metric, stat)
    except ValueError as error:
        problems.append(f"{key}: {error}")
        return None
