"""When a cell counts: every trust check as a named reason; docs/inconclusive.md is generated from this table.

A reason always keeps a cell from passing; `taints` says for which figures a FAIL does not stand either, because the
fault could have caused it.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.judge import facts as see
from loadtest.judge.facts import Facts, Seen
from loadtest.judge.verdict import Reason

LATENCY, ERRORS, RATES, ACCEPTANCE = "latency", "errors", "rates", "acceptance"
ALL = frozenset((LATENCY, ERRORS, RATES, ACCEPTANCE))
TIMES = frozenset((LATENCY, RATES))

MERGED_CHUNKS = 0.001  # merged stamps move a p99 once they reach a share of its 1 % tail
MERGED_FIRST = 0.005  # half of the 1 % that a P99 of TTFT rests on
CLIENT_LAG_US = 20_000.0  # ten polls of the default pace: beyond it the next request of a closed loop starts late
LATENESS_US = 20_000.0  # the same for scheduled starts; small against a TTFT limit of hundreds of ms
WORKER_CPU = 0.9  # share of one core; above, reads and sends wait for the client itself
STALL_SHARE = 0.05  # up to P95 the client's own absence stays out of a percentile
CLOCK_SKEW_MS = 50.0  # hosts with NTP differ by a few ms; 50 ms are 0.1 % of a window of a minute
CLOCK_STEP_US = 5_000.0  # reading two clocks on a busy machine differs by less; a real step is larger


@dataclass(frozen=True, slots=True)
class TrustCheck:
    """A condition under which a cell does not count. `seen` gives what was seen, or None where all is well."""

    code: str
    limit: str
    why: str
    do: str
    taints: frozenset[str]
    seen: Seen
    blocking: bool = True

    def run(self, facts: Facts) -> Reason | None:
        """The reason, or None where all is well."""
        seen = self.seen(facts)
        return None if seen is None else Reason(self.code, seen, self.limit, self.why, self.do, self.blocking)


NOT_DONE = "cell_not_done"

CHECKS: tuple[TrustCheck, ...] = (
    TrustCheck(
        NOT_DONE,
        "state = done",
        "An unfinished cell holds only part of its window.",
        "Finish the run with `loadtest run --resume`; if the server failed, read servers/<config>/failed.json.",
        ALL,
        see.not_done,
    ),
    TrustCheck(
        "no_requests",
        "at least 1 request",
        "Without requests there is nothing to judge.",
        "Lengthen the window or look for errors in the Locust log.",
        ALL,
        see.no_requests,
    ),
    TrustCheck(
        "worker_missing",
        "all workers",
        "The requests of a missing worker may be the slow ones.",
        "Run the cell again; see the Locust log for the worker's end.",
        ALL,
        see.workers,
    ),
    TrustCheck(
        "rows_missing",
        "rows = requests sent",
        "Lost rows are rarely a random sample of the requests.",
        "Run the cell again; check disk space and the Locust log.",
        ALL,
        see.rows,
    ),
    TrustCheck(
        "torn_file",
        "no torn file",
        "What stood behind the tear is lost.",
        "Run the cell again.",
        ALL,
        see.empty("torn_files", "torn"),
    ),
    TrustCheck(
        "duplicate_request_ids",
        "0",
        "A request counted twice weighs twice; another client may use our ids.",
        "Merge again from the raw files; make sure that no other load test runs.",
        ALL,
        see.at_most("duplicate_request_ids", 0, "{value:g} request ids occur twice"),
    ),
    TrustCheck(
        "merged_reads",
        "0.1 % of the chunks",
        "Chunks read together share one time stamp, so gaps are wrong.",
        "Use more workers or fewer streams per worker; free the client's CPU.",
        frozenset((LATENCY,)),
        see.advised(
            see.streamed(see.at_most("coalesced_share", MERGED_CHUNKS, "{value:.2%} of the chunks were read together"))
        ),
    ),
    TrustCheck(
        "merged_first_chunks",
        "0.5 % of the first chunks",
        "The TTFT of such a request is only an upper bound, and these are the tail of a P99.",
        "Use more workers or fewer streams per worker; free the client's CPU.",
        frozenset((LATENCY,)),
        see.advised(
            see.streamed(see.at_most("merged_first_share", MERGED_FIRST, "{value:.2%} of the first chunks were merged"))
        ),
    ),
    TrustCheck(
        "arrivals_dropped",
        "0",
        "A dropped arrival would have waited longest: leaving it out flatters the tail.",
        "Raise the cap of requests in flight or lower the rate.",
        TIMES,
        see.open_loop(see.at_most("dropped", 0, "{value:g} scheduled arrivals were never sent")),
    ),
    TrustCheck(
        "late_sends",
        "P99 at most 20 ms",
        "A late start hides the waiting that a real user would have had.",
        "Use more workers; free the client's CPU.",
        frozenset((LATENCY,)),
        see.advised(
            see.open_loop(see.at_most("lateness_p99_us", LATENESS_US, "P99 of send minus schedule {value:.0f} us"))
        ),
    ),
    TrustCheck(
        "client_lag",
        "P99 at most 20 ms",
        "The client reacts late, so a closed loop offers less load than asked.",
        "Use more workers or a machine of its own for the client; kernel stamps need Linux.",
        frozenset((LATENCY,)),
        see.advised(
            see.served(
                see.stamped(
                    see.at_most("client_lag_p99_us", CLIENT_LAG_US, "P99 of read minus kernel stamp {value:.0f} us")
                )
            )
        ),
    ),
    TrustCheck(
        "client_cpu",
        "90 % of a core per worker",
        "A saturated client measures itself.",
        "Use more workers or a machine of its own for the client.",
        TIMES,
        see.advised(see.at_most("worker_cpu_max", WORKER_CPU, "a worker used {value:.0%} of a core")),
    ),
    TrustCheck(
        "client_stalls",
        "5 % of the window",
        "While its event loop is away a worker neither reads nor sends; a request in twenty would meet that.",
        "Free the client's CPU; look for a listener of Locust's events that blocks.",
        TIMES,
        see.advised(
            see.at_most("worker_stall_share", STALL_SHARE, "a worker's event loop was away for {value:.1%} of the time")
        ),
    ),
    TrustCheck(
        "clock_skew",
        "50 ms",
        "The windows of the workers and of the counters are absolute times: such a worker measured another one.",
        "Run NTP (or chrony, PTP) on all hosts, and the cell again.",
        frozenset((RATES, ACCEPTANCE)),
        see.at_most("clock_skew_ms", CLOCK_SKEW_MS, "a worker's clock is off by {value:.0f} ms or more"),
    ),
    TrustCheck(
        "clock_step",
        "5 ms",
        "A clock that steps moves every duration across the step.",
        "Let NTP settle (or stop it) and run the cell again.",
        TIMES,
        see.at_most("clock_step_us", CLOCK_STEP_US, "the wall clock stepped by {value:.0f} us"),
    ),
    TrustCheck(
        "load_not_reached",
        "80 % of the concurrency asked",
        "Another load was measured than the label says.",
        "Look for errors, a pause between requests or too few prompts.",
        TIMES,
        see.reached,
    ),
    TrustCheck(
        "scrape_gap",
        "gap at most 5 s, 90 % of the scrapes",
        "A restart or foreign traffic would go unseen.",
        "Check that /metrics answers within a second under load.",
        frozenset((ACCEPTANCE,)),
        see.scrapes,
    ),
    TrustCheck(
        "counter_reset",
        "none",
        "The server restarted inside the cell: cold caches and lost counts.",
        "Find the cause in server.log; run the cell again.",
        TIMES | {ACCEPTANCE},
        see.empty("counter_resets", "reset"),
    ),
    TrustCheck(
        "foreign_traffic",
        "1 % of the generated tokens",
        "Other clients used the server during the cell.",
        "Give the test a server of its own; check the residuals in cells.parquet.",
        ALL - {ERRORS},
        see.foreign,
    ),
    TrustCheck(
        "spec_identity",
        "none",
        "The acceptance counts contradict each other, so no ratio of them holds.",
        "Check vLLM's version; report the block that is named.",
        frozenset((ACCEPTANCE,)),
        see.empty("spec_identity_breaches", "breach"),
    ),
    TrustCheck(
        "acceptance_residual",
        "1 % of the counter",
        "Per-request blocks and server counters tell two stories.",
        "Look for aborted requests, n > 1 or another client.",
        frozenset((ACCEPTANCE,)),
        see.residual,
    ),
    TrustCheck(
        "config_contradiction",
        "none",
        "The server runs another config than the plan asked for.",
        "Read provenance.json of the cell; fix the launch or the plan.",
        ALL,
        see.empty("contradictions", "contradicted"),
    ),
    TrustCheck(
        "several_fingerprints",
        "one per cell",
        "Different servers, or a server that was swapped, answered within one cell.",
        "Give each config endpoints of its own; read server_fingerprint in requests/.",
        ALL,
        see.swapped,
    ),
    TrustCheck(
        "implausible_values",
        "0 rows",
        "A zero or negative latency is no measurement (nothing was generated?).",
        "Look at these rows in requests/; check the server's stream.",
        ALL,
        see.at_most("implausible_rows", 0, "{value:g} served requests with an impossible latency (zero TTFT?)"),
    ),
    TrustCheck(
        "no_usage",
        "0 rows",
        "Without the server's usage the tokens are not known.",
        "Ask for stream_options.include_usage or start vLLM with --enable-force-include-usage.",
        frozenset((RATES, ACCEPTANCE)),
        see.at_most("served_without_usage", 0, "{value:g} served requests without a token count"),
    ),
    TrustCheck(
        "hdr_mismatch",
        "0.2 %",
        "Two ways of counting the same latencies disagree, so one is wrong.",
        "Merge again; if it stays, report a bug with the run folder.",
        frozenset((LATENCY,)),
        see.served(see.hdr),
    ),
    TrustCheck(
        "simulated",
        "a real server",
        "The simulated server checks the process; its latencies are invented.",
        "Run the same plan against vLLM.",
        frozenset(),
        see.simulated,
    ),
    TrustCheck(
        "synthetic_acceptance",
        "real acceptance",
        "Synthetic acceptance forces drafts through: text and speed are not real.",
        'Remove rejection_sample_method = "synthetic".',
        frozenset(),
        see.synthetic,
    ),
    TrustCheck(
        "user_clock",
        "kernel stamps for all rows",
        "User-space stamps include the client's own delay.",
        "Send from Linux for kernel stamps; else read the latencies as upper bounds.",
        frozenset(),
        see.user_clock,
        blocking=False,
    ),
    TrustCheck(
        "preemptions",
        "0",
        "Preempted requests are computed twice; the KV cache was too small for this load.",
        "Raise --gpu-memory-utilization or lower --max-num-seqs if this is not wanted.",
        frozenset(),
        see.preempted,
        blocking=False,
    ),
)


def cell_reasons(facts: Facts) -> list[tuple[Reason, frozenset[str]]]:
    """Every reason of one cell with the figures that it taints; hints included.

    Of a cell that was not done only that: everything else that is missing follows from it.
    """
    found = [(reason, check.taints) for check in CHECKS if (reason := check.run(facts)) is not None]
    not_done = [(reason, taints) for reason, taints in found if reason.code == NOT_DONE]
    return not_done or found
