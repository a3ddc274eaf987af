"""Facts of a cell and what the trust checks see in them: each function gives words for what is wrong, or None.

A fact that is null where it is needed is wrong: the gate fails closed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Facts = Mapping[str, Any]
"""A row of cells.parquet, with what `context.row_facts` counts in the request rows."""
Seen = Callable[[Facts], str | None]

SCRAPE_GAP_S = 5.0  # five scrapes at 1 Hz: queue peaks and a restart would go unseen
SCRAPE_SHARE = 0.9
FOREIGN_SHARE = 0.01  # the design's bound: foreign work of 1 % moves a p99
HDR_ERROR = 0.002  # three digits of HDR give 0.1 %; twice that is a fault, not rounding
REACHED = 0.8  # a closed loop with a fifth of its streams missing measured another load
RESIDUAL = 0.01  # per-request blocks against counters, share of the counter


def value(facts: Facts, name: str) -> float | None:
    """A numeric fact; null and NaN are None."""
    found = facts.get(name)
    return None if found is None or math.isnan(found) else float(found)


def at_most(name: str, most: float, words: str) -> Seen:
    """Not trusted above `most`, or where the fact is null. `words` has one {value}."""

    def seen(facts: Facts) -> str | None:
        found = value(facts, name)
        if found is None:
            return f"{name} is not known"
        return None if found <= most else words.format(value=found)

    return seen


def empty(name: str, words: str) -> Seen:
    """Not trusted where the list has entries or is null."""

    def seen(facts: Facts) -> str | None:
        items = facts.get(name)
        if items is None:
            return f"{name} is not known"
        return f"{words}: {', '.join(map(str, items[:5]))}" if items else None

    return seen


def advised(check: Seen) -> Seen:
    """A breach that a busy client causes: says whether more workers would help, and how many would be enough."""

    def seen(facts: Facts) -> str | None:
        found = check(facts)
        have, enough = value(facts, "workers_reported"), value(facts, "workers_enough")
        if found is None or have is None or enough is None:
            return found
        if enough > have:
            return f"{found}; {enough:g} workers would be enough ({have:g} were not)"
        return f"{found}; {have:g} workers had CPU to spare, so look for what else is busy on their hosts"

    return seen


def stamped(check: Seen) -> Seen:
    """A fact of kernel stamps. Without any, reading late only makes latencies longer, so a PASS is still safe."""
    return lambda facts: None if value(facts, "user_clock_share") == 1.0 else check(facts)


def served(check: Seen) -> Seen:
    """A fact that exists only where something was served."""
    return lambda facts: check(facts) if (value(facts, "ok") or 0) > 0 else None


def streamed(check: Seen) -> Seen:
    """A fact that exists only where chunks came in."""
    return lambda facts: check(facts) if (value(facts, "chunks") or 0) > 0 else None


def open_loop(check: Seen) -> Seen:
    """A fact that exists only for scheduled arrivals."""
    return lambda facts: check(facts) if facts.get("load_kind") not in ("closed", "sequential") else None


def not_done(facts: Facts) -> str | None:
    """The cell did not finish, or was never measured."""
    if facts.get("state") == "done":
        return None
    cause = f": {facts['state_reason']}" if facts.get("state_reason") else ""
    return f"the cell is {facts.get('state') or 'of unknown state'}{cause}"


def workers(facts: Facts) -> str | None:
    """Workers that did not report."""
    expected, reported = value(facts, "workers_expected"), value(facts, "workers_reported")
    if expected is None or reported is None or expected < 1 or reported != expected:
        return f"{plain(reported)} of {plain(expected)} workers reported"
    return None


def rows(facts: Facts) -> str | None:
    """Requests sent that have no row."""
    missing = value(facts, "worker_rows_missing")
    sent, found = value(facts, "sent"), value(facts, "rows")
    if missing is None or missing != 0:
        return f"rows the workers sent minus rows in the files: {plain(missing)}"
    extra = value(facts, "worker_rows_extra")
    if extra:
        return f"{extra:g} rows more than the workers sent"
    if sent is None or found != sent:
        return f"{plain(found)} request rows, but {plain(sent)} requests were sent in the window"
    return None


def scrapes(facts: Facts) -> str | None:
    """Missing scrapes of /metrics."""
    expected, ok, gap = (value(facts, k) for k in ("scrapes_expected", "scrapes_ok", "scrape_max_gap_s"))
    if not expected or ok is None or gap is None:
        return "the server's /metrics was not scraped"
    if gap > SCRAPE_GAP_S or ok < SCRAPE_SHARE * expected:
        return f"{ok:g} of {expected:g} scrapes worked, longest gap {gap:.1f} s"
    return None


def hdr(facts: Facts) -> str | None:
    """The live histogram against the exact quantiles."""
    error, overflow = value(facts, "hdr_max_rel_error"), value(facts, "hdr_overflow")
    if error is None or overflow is None:
        return "no live histogram to check against"
    if overflow > 0:
        return f"{overflow:g} values outside the histogram's range"
    return f"the live histogram differs by {100 * error:.2f} %" if error > HDR_ERROR else None


def reached(facts: Facts) -> str | None:
    """A closed loop that did not keep its streams busy."""
    if facts.get("load_kind") != "closed":
        return None
    flying, asked = value(facts, "achieved_concurrency"), value(facts, "load_value")
    if flying is None or asked is None:
        return "the concurrency reached is not known"
    thinking = value(facts, "thinking_concurrency") or 0.0  # Little's law counts who pauses too
    if flying + thinking >= REACHED * asked:
        return None
    pausing = f" and {thinking:.1f} users pausing" if thinking else ""
    return f"{flying:.1f} requests in flight{pausing} on average, {asked:g} asked"


def residual(facts: Facts) -> str | None:
    """Per-request acceptance blocks against the counters."""
    for kind in ("spec_steps", "draft_tokens", "accepted_tokens"):
        left, counter = value(facts, f"residual_{kind}"), value(facts, f"cell_ctr_{kind}")
        if left is not None and counter is not None and abs(left) > RESIDUAL * max(counter, 1.0):
            return f"{kind}: counters minus requests = {left:g} of {counter:g}"
    return None


def foreign(facts: Facts) -> str | None:
    """Tokens that the server generated for others."""
    share = value(facts, "unexplained_share")
    if share is None:
        return "the server's token counters could not be compared with the requests"
    if abs(share) <= FOREIGN_SHARE:
        return None
    # The other sign is a replica that nobody scraped, or an old page: the note says which.
    return str(facts.get("residual_note") or f"{100 * share:.1f} % of the server's tokens are not ours")


def no_requests(facts: Facts) -> str | None:
    """Nothing was sent."""
    sent = value(facts, "sent")
    return None if sent else f"{plain(sent)} requests were sent in the window"


def plain(number: float | None) -> str:
    """A number, or "unknown"."""
    return "unknown" if number is None else f"{number:g}"


def user_clock(facts: Facts) -> str | None:
    """Rows stamped in user space."""
    share = value(facts, "user_clock_share")
    return f"{100 * share:.1f} % of the rows have user-space stamps" if share else None


def preempted(facts: Facts) -> str | None:
    """Requests that the server computed twice."""
    times = value(facts, "preemptions")
    return f"{times:g} preemptions" if times else None


def simulated(facts: Facts) -> str | None:
    """Anything but a server known to be real."""
    return None if facts.get("simulated") is False else "the server is simulated"


def synthetic(facts: Facts) -> str | None:
    """Anything but acceptance known to be real."""
    return None if facts.get("synthetic_acceptance") is False else "acceptance is synthetic"


def swapped(facts: Facts) -> str | None:
    """Responses of one cell that name more than one server."""
    prints = facts.get("server_fingerprints")
    return (
        f"responses carry {len(prints)} fingerprints: {', '.join(prints[:3])}" if prints and len(prints) > 1 else None
    )
