"""Kinds of entries of `mapping.py` and the conversions to the units and names of the cases."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadtest.server.scrapes import SCRAPE_OK

By = Callable[[Any], Any]


def same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Fig:
    where: str
    by: By = same
    timed: bool = False


@dataclass(frozen=True)
class Holds:
    where: str


@dataclass(frozen=True)
class Told:
    where: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Ours:
    where: str
    value: Any
    why: str
    by: By = same


@dataclass(frozen=True)
class Words:
    why: str


Entry = Fig | Holds | Told | Ours | Words


def ms(where: str) -> Fig:
    return Fig(where, lambda us: None if us is None else us / 1000, timed=True)


def gaps_ms(offsets_us: list[int]) -> list[float]:
    return [(b - a) / 1000 for a, b in itertools.pairwise(offsets_us)]


def told(where: str, *words: str) -> Told:
    return Told(where, words)


def spread(row: dict[str, Any]) -> list[float]:
    """Gap over the tokens of its chunk, once for each."""
    gaps = gaps_ms(row["chunk_offset_us"])
    return [gap / n for gap, n in zip(gaps, row["chunk_tokens"][1:], strict=True) for _ in range(n)]


def lower(status: str) -> str:
    return status.lower()


def is_ok(outcome: str) -> bool:
    return outcome == "ok"


def kept(rows: list[Any]) -> str:
    return "kept" if rows and all(r["e2e_us"] is not None for r in rows) else "lost"


def failed_edges(samples: list[dict[str, Any]]) -> int:
    edges = ("window_start", "window_end")
    return sum(s["metric"] == SCRAPE_OK and s["edge"] in edges and s["value"] == 0 for s in samples)


def last(metric: str, field: str = "value", **labels: str) -> By:
    """The value (or another field) of a sample in the last scrape; "absent" where it has no row."""

    def find(samples: list[dict[str, Any]]) -> Any:
        found = [s for s in samples if s["metric"] == metric and s["edge"] == "window_end"]
        found = [s for s in found if all(f'"{k}": "{v}"' in s["labels"] for k, v in labels.items())]
        return found[0][field] if found else "absent"

    return find


def four_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = [{"id": i, "num_spec_steps": r["spec_steps"]} for i, r in enumerate(rows, 1)]
    d, s = rows[3]["draft_tokens"], rows[3]["spec_steps"]
    out[3] |= {"draft_acceptance_rate": None if not d else 1.0, "mean_acceptance_length": None if not s else 1.0}
    return out


def texts(data: Any) -> list[str]:
    return [p.messages[-1].content for p in data.prompts]


def by_id(data: Any) -> dict[str, str]:
    return {p.prompt_id: p.messages[-1].content for p in data.prompts}


def system(data: Any) -> list[str | None]:
    return [next((m.content for m in p.messages if m.role == "system"), None) for p in data.prompts]


def skipped(source_id: str) -> By:
    return lambda data: next(s.reason for s in data.skipped if s.source_id == source_id)


def ints(ids: list[str]) -> list[int]:
    return [int(i) for i in ids]


def only(values: Any) -> Any:
    """The one value that all rows have."""
    (value,) = set(values)
    return value
