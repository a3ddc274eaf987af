"""When a cell counts: every trust check as a named reason. docs/inconclusive.md is generated from `CHECKS` and `PAIR_CHECKS`.

The gate fails closed: a fact that is null where it is needed is not trusted. A reason always keeps a cell from passing;
`taints` says for which figures a FAIL does not stand either, because the fault could have caused it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadtest.judge.verdict import Reason

Facts = Mapping[str, Any]
"""A row of cells.parquet, with what `gate` counts in the request rows: `rows`, `implausible_rows`, `rows_without_usage`."""

LATENCY, ERRORS, RATES, ACCEPTANCE = "latency", "errors", "rates", "acceptance"
ALL = frozenset((LATENCY, ERRORS, RATES, ACCEPTANCE))
TIMES = frozenset((LATENCY, RATES))

MERGED_CHUNKS = 0.001  # merged stamps move a p99 once they reach a share of its 1 % tail
MERGED_FIRST = 0.005  # half of the 1 % that a P99 of TTFT rests on
CLIENT_LAG_US = 20_000.0  # ten polls of the default pace: beyond it the next request of a closed loop starts late
LATENESS_US = 20_000.0  # the same for scheduled starts; small against a TTFT limit of hundreds of ms
WORKER_CPU = 0.9  # share of one core; above, reads and sends wait for the client itself
CLOCK_STEP_US = 5_000.0  # reading two clocks on a busy machine differs by less; a real step is larger
SCRAPE_GAP_S = 5.0  # five scrapes at 1 Hz: queue peaks and a restart would go unseen
SCRAPE_SHARE = 0.9
FOREIGN_SHARE = 0.01  # the design's bound: foreign work of 1 % moves a p99
HDR_ERROR = 0.002  # three digits of HDR give 0.1 %; twice that is a fault, not rounding
REACHED = 0.8  # a closed loop with a fifth of its streams missing measured another load
RESIDUAL = 0.01  # per-request blocks against counters, share of the counter
HIT_RATE_GAP = 0.05  # prefill of 5 % of the prompts saved is visible in TTFT
LENGTH_BAND = (0.95, 1.05)  # the guard of MLPerf, halved: lengths go straight into E2E
USAGE_SHARE = 0.0  # usage is the only token count


@dataclass(frozen=True, slots=True)
class TrustCheck:
    """A condition under which a cell does not count. `seen` gives what was seen, or None where all is well."""

    code: str
    limit: str
    why: str
    do: str
    taints: frozenset[str]
    seen: Callable[[Facts], str | None]
    blocking: bool = True

    def run(self, facts: Facts) -> Reason | None:
        """The reason, or None where all is well."""
        seen = self.seen(facts)
        return None if seen is None else Reason(self.code, seen, self.limit, self.why, self.do, self.blocking)


def _value(facts: Facts, name: str) -> float | None:
    value = facts.get(name)
    return None if value is None or math.isnan(value) else float(value)


def _at_most(name: str, most: float, words: str) -> Callable[[Facts], str | None]:
    """Not trusted above `most`, or where the fact is null. `words` has one {value}."""

    def seen(facts: Facts) -> str | None:
        value = _value(facts, name)
        if value is None:
            return f"{name} is not known"
        return None if value <= most else words.format(value=value)

    return seen


def _empty(name: str, words: str) -> Callable[[Facts], str | None]:
    """Not trusted where the list has entries or is null."""

    def seen(facts: Facts) -> str | None:
        items = facts.get(name)
        if items is None:
            return f"{name} is not known"
        return f"{words}: {', '.join(map(str, items[:5]))}" if items else None

    return seen


def _served(check: Callable[[Facts], str | None]) -> Callable[[Facts], str | None]:
    """A fact that exists only where something was served."""
    return lambda facts: check(facts) if (_value(facts, "ok") or 0) > 0 else None


def _streamed(check: Callable[[Facts], str | None]) -> Callable[[Facts], str | None]:
    """A fact that exists only where chunks came in."""
    return lambda facts: check(facts) if (_value(facts, "chunks") or 0) > 0 else None


def _open_loop(check: Callable[[Facts], str | None]) -> Callable[[Facts], str | None]:
    return lambda facts: check(facts) if facts.get("load_kind") not in ("closed", "sequential") else None


def _not_done(facts: Facts) -> str | None:
    if facts.get("state") == "done":
        return None
    cause = f": {facts['state_reason']}" if facts.get("state_reason") else ""
    return f"the cell is {facts.get('state') or 'of unknown state'}{cause}"


def _workers(facts: Facts) -> str | None:
    expected, reported = _value(facts, "workers_expected"), _value(facts, "workers_reported")
    if expected is None or reported is None or expected < 1 or reported != expected:
        return f"{_plain(reported)} of {_plain(expected)} workers reported"
    return None


def _rows(facts: Facts) -> str | None:
    missing = _value(facts, "worker_rows_missing")
    sent, rows = _value(facts, "sent"), _value(facts, "rows")
    if missing is None or missing != 0:
        return f"rows the workers sent minus rows in the files: {_plain(missing)}"
    if sent is None or rows != sent:
        return f"{_plain(rows)} request rows, but {_plain(sent)} requests were sent in the window"
    return None


def _scrapes(facts: Facts) -> str | None:
    expected, ok, gap = (_value(facts, k) for k in ("scrapes_expected", "scrapes_ok", "scrape_max_gap_s"))
    if not expected or ok is None or gap is None:
        return "the server's /metrics was not scraped"
    if gap > SCRAPE_GAP_S or ok < SCRAPE_SHARE * expected:
        return f"{ok:g} of {expected:g} scrapes worked, longest gap {gap:.1f} s"
    return None


def _hdr(facts: Facts) -> str | None:
    error, overflow = _value(facts, "hdr_max_rel_error"), _value(facts, "hdr_overflow")
    if error is None or overflow is None:
        return "no live histogram to check against"
    if overflow > 0:
        return f"{overflow:g} values outside the histogram's range"
    return f"the live histogram differs by {100 * error:.2f} %" if error > HDR_ERROR else None


def _reached(facts: Facts) -> str | None:
    if facts.get("load_kind") != "closed":
        return None
    reached, asked = _value(facts, "achieved_concurrency"), _value(facts, "load_value")
    if reached is None or asked is None:
        return "the concurrency reached is not known"
    return f"{reached:.1f} requests in flight on average, {asked:g} asked" if reached < REACHED * asked else None


def _residual(facts: Facts) -> str | None:
    for kind in ("spec_steps", "draft_tokens", "accepted_tokens"):
        residual, counter = _value(facts, f"residual_{kind}"), _value(facts, f"cell_ctr_{kind}")
        if residual is not None and counter is not None and abs(residual) > RESIDUAL * max(counter, 1.0):
            return f"{kind}: counters minus requests = {residual:g} of {counter:g}"
    return None


def _foreign(facts: Facts) -> str | None:
    share = _value(facts, "unexplained_share")
    if share is None:
        return "the server's token counters could not be compared with the requests"
    return f"{100 * share:.1f} % of the server's tokens are not ours" if abs(share) > FOREIGN_SHARE else None


def _no_requests(facts: Facts) -> str | None:
    sent = _value(facts, "sent")
    return None if sent else f"{_plain(sent)} requests were sent in the window"


def _plain(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"


CHECKS: tuple[TrustCheck, ...] = (
    TrustCheck("cell_not_done", "state = done", "An unfinished cell holds only part of its window.",
               "Finish the run with `loadtest run --resume`; if the server failed, read servers/<config>/failed.json.",
               ALL, _not_done),
    TrustCheck("no_requests", "at least 1 request", "Without requests there is nothing to judge.",
               "Lengthen the window or look for errors in the Locust log.", ALL, _no_requests),
    TrustCheck("worker_missing", "all workers", "The requests of a missing worker may be the slow ones.",
               "Run the cell again; see the Locust log for the worker's end.", ALL, _workers),
    TrustCheck("rows_missing", "rows = requests sent", "Lost rows are rarely a random sample of the requests.",
               "Run the cell again; check disk space and the Locust log.", ALL, _rows),
    TrustCheck("torn_file", "no torn file", "What stood behind the tear is lost.",
               "Run the cell again.", ALL, _empty("torn_files", "torn")),
    TrustCheck("duplicate_request_ids", "0", "A request counted twice weighs twice; another client may use our ids.",
               "Merge again from the raw files; make sure that no other load test runs.",
               ALL, _at_most("duplicate_request_ids", 0, "{value:g} request ids occur twice")),
    TrustCheck("merged_reads", "0.1 % of the chunks", "Chunks read together share one time stamp, so gaps are wrong.",
               "Use more workers or fewer streams per worker; free the client's CPU.",
               frozenset((LATENCY,)),
               _streamed(_at_most("coalesced_share", MERGED_CHUNKS, "{value:.2%} of the chunks were read together"))),
    TrustCheck("merged_first_chunks", "0.5 % of the first chunks",
               "The TTFT of such a request is only an upper bound, and these are the tail of a P99.",
               "Use more workers or fewer streams per worker; free the client's CPU.",
               frozenset((LATENCY,)),
               _streamed(_at_most("merged_first_share", MERGED_FIRST, "{value:.2%} of the first chunks were merged"))),
    TrustCheck("arrivals_dropped", "0", "A dropped arrival would have waited longest: leaving it out flatters the tail.",
               "Raise the cap of requests in flight or lower the rate.",
               TIMES, _open_loop(_at_most("dropped", 0, "{value:g} scheduled arrivals were never sent"))),
    TrustCheck("late_sends", "P99 at most 20 ms", "A late start hides the waiting that a real user would have had.",
               "Use more workers; free the client's CPU.",
               frozenset((LATENCY,)),
               _open_loop(_at_most("lateness_p99_us", LATENESS_US, "P99 of send minus schedule {value:.0f} us"))),
    TrustCheck("client_lag", "P99 at most 20 ms", "The client reacts late, so a closed loop offers less load than asked.",
               "Use more workers or a machine of its own for the client; without kernel time stamps (TLS) use a plain "
               "connection to the server.",
               frozenset((LATENCY,)),
               _served(_at_most("client_lag_p99_us", CLIENT_LAG_US, "P99 of read time minus kernel stamp {value:.0f} us"))),
    TrustCheck("client_cpu", "90 % of a core per worker", "A saturated client measures itself.",
               "Use more workers or a machine of its own for the client.",
               TIMES, _at_most("worker_cpu_max", WORKER_CPU, "a worker used {value:.0%} of a core")),
    TrustCheck("clock_step", "5 ms", "A clock that steps moves every duration across the step.",
               "Let NTP settle (or stop it) and run the cell again.",
               TIMES, _at_most("clock_step_us", CLOCK_STEP_US, "the wall clock stepped by {value:.0f} us")),
    TrustCheck("load_not_reached", "80 % of the concurrency asked", "Another load was measured than the label says.",
               "Look for errors, a pause between requests or too few prompts.", TIMES, _reached),
    TrustCheck("scrape_gap", "gap at most 5 s, 90 % of the scrapes", "A restart or foreign traffic would go unseen.",
               "Check that /metrics answers within a second under load.", frozenset((ACCEPTANCE,)), _scrapes),
    TrustCheck("counter_reset", "none", "The server restarted inside the cell: cold caches and lost counts.",
               "Find the cause in server.log; run the cell again.",
               TIMES | {ACCEPTANCE}, _empty("counter_resets", "reset")),
    TrustCheck("foreign_traffic", "1 % of the generated tokens", "Other clients used the server during the cell.",
               "Give the test a server of its own; check the residuals in cells.parquet.", ALL - {ERRORS}, _foreign),
    TrustCheck("spec_identity", "none", "The acceptance counts contradict each other, so no ratio of them holds.",
               "Check vLLM's version; report the block that is named.",
               frozenset((ACCEPTANCE,)), _empty("spec_identity_breaches", "breach")),
    TrustCheck("acceptance_residual", "1 % of the counter", "Per-request blocks and server counters tell two stories.",
               "Look for aborted requests, n > 1 or another client.", frozenset((ACCEPTANCE,)), _residual),
    TrustCheck("config_contradiction", "none", "The server runs another config than the plan asked for.",
               "Read provenance.json of the cell; fix the launch or the plan.",
               ALL, _empty("contradictions", "contradicted")),
    TrustCheck("implausible_values", "0 rows", "A zero or negative latency is no measurement (nothing was generated?).",
               "Look at these rows in requests/; check the server's stream.",
               ALL, _at_most("implausible_rows", 0, "{value:g} served requests with an impossible latency")),
    TrustCheck("no_usage", "0 rows", "Without the server's usage the tokens are not known.",
               "Ask for stream_options.include_usage or start vLLM with --enable-force-include-usage.",
               frozenset((RATES, ACCEPTANCE)),
               _at_most("rows_without_usage", USAGE_SHARE, "{value:g} served requests without a token count")),
    TrustCheck("hdr_mismatch", "0.2 %", "Two ways of counting the same latencies disagree, so one is wrong.",
               "Merge again; if it stays, report a bug with the run folder.", frozenset((LATENCY,)), _served(_hdr)),
    TrustCheck("simulated", "a real server", "The simulated server checks the process; its latencies are invented.",
               "Run the same plan against vLLM.", frozenset(),
               lambda f: None if f.get("simulated") is False else "the server is simulated"),
    TrustCheck("synthetic_acceptance", "real acceptance", "Synthetic acceptance forces drafts through: text and speed are not real.",
               "Remove rejection_sample_method = \"synthetic\".", frozenset(),
               lambda f: None if f.get("synthetic_acceptance") is False else "acceptance is synthetic"),
    TrustCheck("user_clock", "kernel stamps for all rows", "User-space stamps include the client's own delay.",
               "Use a plain connection on Linux for kernel stamps; else read the latencies as upper bounds.", frozenset(),
               lambda f: None if not _value(f, "user_clock_share") else f"{f['user_clock_share']:.1%} of the rows have user-space stamps",
               blocking=False),
    TrustCheck("preemptions", "0", "Preempted requests are computed twice; the KV cache was too small for this load.",
               "Raise --gpu-memory-utilization or lower --max-num-seqs if this is not wanted.", frozenset(),
               lambda f: f"{f['preemptions']:g} preemptions" if _value(f, "preemptions") else None, blocking=False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PairCheck:
    """A condition under which two cells may not be compared."""

    code: str
    limit: str
    why: str
    do: str
    seen: Callable[[Facts, Facts], str | None]
    """(baseline, candidate) -> what was seen."""
    blocking: bool = True

    def run(self, baseline: Facts, candidate: Facts) -> Reason | None:
        """The reason, or None where all is well."""
        seen = self.seen(baseline, candidate)
        return None if seen is None else Reason(self.code, seen, self.limit, self.why, self.do, self.blocking)


def hit_rate(facts: Facts) -> float | None:
    """Prefix cache hits over queries of the window; 0 where nothing was asked, None where it is not known."""
    queries, hits = _value(facts, "prefix_cache_queries"), _value(facts, "prefix_cache_hits")
    if queries is None or hits is None:
        return None
    return hits / queries if queries > 0 else 0.0


def _prefix_cache(base: Facts, cand: Facts) -> str | None:
    rates = hit_rate(base), hit_rate(cand)
    if rates[0] is None or rates[1] is None:
        return "the prefix cache hit rate is not known on both sides"
    if abs(rates[0] - rates[1]) > HIT_RATE_GAP:
        return f"hit rate {100 * rates[1]:.0f} % against {100 * rates[0]:.0f} % of the baseline"
    return None


def length_ratio(base: Facts, cand: Facts) -> float | None:
    """Mean output tokens, candidate over baseline."""
    lengths = _value(base, "mean_output_tokens"), _value(cand, "mean_output_tokens")
    return None if lengths[0] is None or lengths[1] is None or lengths[0] <= 0 else lengths[1] / lengths[0]


def _lengths(base: Facts, cand: Facts) -> str | None:
    if (_value(cand, "temperature") or 0.0) > 0.0:
        return None  # sampled lengths differ by chance
    ratio = length_ratio(base, cand)
    if ratio is None:
        return "the output lengths are not known on both sides"
    if LENGTH_BAND[0] <= ratio <= LENGTH_BAND[1]:
        return None
    return (
        f"mean output {cand['mean_output_tokens']:g} tokens against {base['mean_output_tokens']:g}: ratio {ratio:.3f}"
    )


def _provenance(base: Facts, cand: Facts) -> str | None:
    texts = base.get("provenance_equal"), cand.get("provenance_equal")
    if texts[0] is None or texts[1] is None:
        return "what ran (version, model, GPU) is not known on both sides"
    one, two = (json.loads(t) for t in texts)
    allowed = set(cand.get("allowed_differences") or ())
    differ = sorted(k for k in {*one, *two} if one.get(k) != two.get(k) and k not in allowed)
    return "; ".join(f"{k}: {one.get(k)!r} against {two.get(k)!r}" for k in differ) or None


def _gamma(base: Facts, cand: Facts) -> str | None:
    one, two = base.get("gamma"), cand.get("gamma")
    return None if one is None or two is None or one == two else f"num_spec_tokens differ ({one} vs {two})"


PAIR_CHECKS: tuple[PairCheck, ...] = (
    PairCheck("prefix_cache_warm", "5 points of hit rate", "One side was served from the prefix cache: its TTFT says nothing "
              "about speculation.", "Restart the server or reset the prefix cache between configs; keep the prompt salt.",
              _prefix_cache),
    PairCheck("output_length_mismatch", "95 to 105 % at temperature 0", "A shorter answer is faster without being better.",
              "Set ignore_eos for all configs, or find out why the outputs differ.", _lengths),
    PairCheck("provenance_differs", "equal but for the speculative config", "The difference may come from another version, model or GPU.",
              "Run both configs on the same machine and build.", _provenance),
    PairCheck("gamma_differs", "equal num_speculative_tokens", "A/D has gamma in its denominator: proposing more lowers it "
              "though the same tokens are accepted.",
              "Compare mean_acceptance_length or the acceptance per position instead.", _gamma, blocking=False),
)  # fmt: skip

RUN_REASONS: dict[str, Reason] = {
    reason.code: reason
    for reason in (
        Reason("no_slo", "no criterion is configured", "at least one [[slo]]", "A gate without a limit cannot fail, so it must not pass.",
               "Write [[slo]] tables into the plan or give --slo FILE."),
        Reason("no_cells", "the run has no cell", "at least one measured cell", "There is nothing to judge.", "Run the plan."),
        Reason("no_baseline", "no baseline cell with the same mix, sampling, load and repeat", "a baseline for each comparison",
               "Without a baseline nothing says that speculation pays.", "Add a config with speculative = none and run it at the same loads."),
    )
}  # fmt: skip
"""Reasons about a run or a comparison as a whole."""


def cell_reasons(facts: Facts) -> list[tuple[Reason, frozenset[str]]]:
    """Every reason of one cell with the figures that it taints; hints included."""
    found = ((check.run(facts), check.taints) for check in CHECKS)
    return [(reason, taints) for reason, taints in found if reason is not None]


def pair_reasons(baseline: Facts, candidate: Facts) -> list[Reason]:
    """Every reason why these two cells may not be compared; hints included."""
    return [reason for check in PAIR_CHECKS if (reason := check.run(baseline, candidate)) is not None]
