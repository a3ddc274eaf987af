"""Whole merges of small run folders whose figures are worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from loadtest.errors import RunFolderError
from loadtest.load import hdr
from loadtest.merge.merge import merge_run
from loadtest.merge.read import open_run
from loadtest.merge.schema import CELLS_SCHEMA, REQUESTS_SCHEMA
from tests.merge.make_run import (
    BASELINE,
    ENDPOINT,
    NGRAM,
    SECOND,
    T0,
    done,
    edge,
    make_big_run,
    make_cell,
    make_cell_folder,
    make_run,
    row,
    sample,
    spec_counters,
    write_json,
    write_rows,
)

CELL = make_cell()


def merged_cell(run_dir: Path, index: int = 0) -> dict[str, Any]:
    merge_run(run_dir)
    cell: dict[str, Any] = open_run(run_dir).cells.to_pylist()[index]
    return cell


def one_cell(run_dir: Path, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    make_run(run_dir, [CELL])
    make_cell_folder(run_dir, CELL, rows, **more)
    return merged_cell(run_dir)


def block(steps: int, drafted: int, accepted: int, completion: int, hist: list[int] | None = None) -> dict[str, Any]:
    return {
        "spec_steps": steps,
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "completion_tokens": completion,
        "acceptance_histogram": hist,
        "spec_source": "response_block",
    }


def timed(send_s: float, chunks_s: list[float], tokens: list[int] | None, **more: Any) -> dict[str, Any]:
    """Times of a request whose chunks come at these seconds after T0."""
    send = T0 + int(send_s * SECOND)
    at = [T0 + int(c * SECOND) for c in chunks_s]
    return {
        "send_ns": send,
        "first_token_ns": at[0],
        "last_token_ns": at[-1],
        "end_ns": at[-1],
        "chunk_offset_us": [(a - send) // 1000 for a in at],
        "chunk_tokens": tokens,
        "chunks": len(at),
    } | more


# --- latency, counts, rates


def test_quantiles_and_rates_by_hand(tmp_path: Path) -> None:
    """100 requests with e2e 1..100 ms: nearest rank, not interpolation."""
    rows = [
        row(i, e2e_us=(i + 1) * 1000, ttft_us=i + 1, tpot_us=float(i + 1), completion_tokens=10, send_ns=T0 + i)
        for i in range(100)
    ]
    c = one_cell(tmp_path, rows)
    assert (c["e2e_p50_us"], c["e2e_p95_us"], c["e2e_p99_us"], c["e2e_p999_us"]) == (50_000, 95_000, 99_000, 100_000)
    assert (c["ttft_p99_us"], c["tpot_p90_us"], c["e2e_n"]) == (99, 90, 100)
    assert c["mean_e2e_us"] == 50_500
    assert (c["sent"], c["ok"], c["failed"], c["error_rate"]) == (100, 100, 0, 0.0)
    assert (c["request_rate"], c["sent_rate"], c["window_s"]) == (10, 10, 10)
    assert c["hdr_max_rel_error"] < 0.002


def test_fast_rejects_are_failures_not_fast_requests(tmp_path: Path) -> None:
    """7 of 10 are turned away in 2 ms: P50 is that of the served ones, the error rate 0.7."""
    served = [row(i, e2e_us=e, ttft_us=50_000, completion_tokens=10) for i, e in enumerate((100_000, 110_000, 120_000))]
    rejected = [row(3 + i, e2e_us=2000, outcome="http_error", http_status=503) for i in range(7)]
    c = one_cell(tmp_path, served + rejected)
    assert (c["ok"], c["failed"], c["error_rate"]) == (3, 7, 0.7)
    assert (c["e2e_p50_us"], c["e2e_p95_us"]) == (110_000, 120_000)
    assert c["request_rate"] == pytest.approx(0.3)
    assert c["mean_output_tokens"] == 10


def test_all_failed_has_no_latency(tmp_path: Path) -> None:
    """A cell without one good answer has null quantiles, which meet no limit."""
    c = one_cell(tmp_path, [row(i, e2e_us=12_000, outcome="http_error", http_status=500) for i in range(3)])
    assert (c["e2e_p99_us"], c["ttft_p50_us"], c["mean_e2e_us"], c["mean_output_tokens"]) == (None,) * 4
    assert (c["error_rate"], c["ok"], c["request_rate"]) == (1.0, 0, 0.0)
    assert (c["completion_tokens"], c["acceptance_source"], c["draft_acceptance_rate"]) == (None, None, None)


def test_refused_connections_count_as_sent_and_failed(tmp_path: Path) -> None:
    """No send stamp does not mean no request; a dropped arrival of an open loop is none."""
    rows = [
        row(0, completion_tokens=5),
        row(1, send_ns=None, outcome="connection_error", http_status=None),
        row(2, send_ns=None, outcome="censored", error="dropped: 512 in flight", http_status=None),
    ]
    worker = {"sent": 2, "rows": 3, "dropped": 1}
    c = one_cell(tmp_path, rows, done_json=done(rows, workers={"0": worker}))
    assert (c["sent"], c["ok"], c["failed"], c["censored"], c["dropped"]) == (2, 1, 1, 0, 1)
    assert (c["worker_rows_missing"], c["worker_rows_extra"]) == (0, 0)


def test_only_the_window_counts(tmp_path: Path) -> None:
    """Warm-up and drain rows are in requests/ but in no figure of the window."""
    rows = [
        row(0, phase="warmup", e2e_us=9, completion_tokens=1),
        row(1, e2e_us=5, completion_tokens=4),
        row(2, outcome="censored", e2e_us=None),
        row(3, phase="drain", e2e_us=9, completion_tokens=2),
    ]
    c = one_cell(tmp_path, rows)
    assert (c["sent"], c["ok"], c["censored"], c["rows_all_phases"], c["error_rate"]) == (2, 1, 1, 4, 0.5)
    assert (c["e2e_n"], c["e2e_p99_us"], c["completion_tokens"], c["cell_req_completion_tokens"]) == (1, 5, 4, 7)


def test_tokens_arrive_by_chunk_stamps(tmp_path: Path) -> None:
    """Window of 10 s. Inside: 1 + 3 of the first (the warm-up chunk came before), 2 of the second, all of the third."""
    rows = [
        row(0, phase="warmup", completion_tokens=9, **timed(-2, [-1, 1, 2], [5, 1, 3])),
        row(1, completion_tokens=6, **timed(8, [9, 10, 11], [2, 1, 3])),
        row(2, completion_tokens=7, **timed(3, [4, 5], [3, 4])),
        row(3, phase="drain", completion_tokens=50, **timed(11, [12, 13], [20, 30])),
    ]
    c = one_cell(tmp_path, rows)
    assert c["output_tok_s"] == pytest.approx((4 + 2 + 7) / 10)
    assert c["output_tok_basis"] == "chunk_stamps"
    # in flight: 0..2 s, 8..10 s and 3..5 s of the window's 10 s
    assert c["achieved_concurrency"] == pytest.approx((2 + 2 + 2) / 10)


def test_tokens_spread_where_chunks_do_not_tell(tmp_path: Path) -> None:
    """Tokens per chunk unknown: half of 8 tokens between 9 and 11 s are inside, and the basis says so."""
    rows = [
        row(0, completion_tokens=8, **timed(8, [9, 10, 11], None)),
        row(1, completion_tokens=6, **timed(1, [2, 3], [2, 4])),
    ]
    c = one_cell(tmp_path, rows)
    assert c["output_tok_s"] == pytest.approx((4 + 6) / 10)
    assert c["output_tok_basis"] == "chunk_stamps+spread"


def test_unknown_tokens_make_the_rate_unknown(tmp_path: Path) -> None:
    """A server without usage: the rate of the others would look like a slow server."""
    rows = [row(0, completion_tokens=6, **timed(1, [2, 3], [2, 4])), row(1, token_source="none", **timed(1, [2], None))]
    c = one_cell(tmp_path, rows)
    assert (c["output_tok_s"], c["tokens_unknown_rows"], c["output_tok_basis"]) == (None, 1, None)


def test_chunk_gaps_stay_within_their_request(tmp_path: Path) -> None:
    """Gaps of requests with three, one and two chunks: 100, 300 and 50 ms; none across requests or of a failed one."""
    rows = [
        row(0, **timed(1, [1.5, 1.6, 1.9], [1, 1, 1])),
        row(1, **timed(2, [2.5], [1])),
        row(2, outcome="truncated", **timed(2, [2.5, 3.5], [1, 1])),
        row(3, **timed(3, [3.5, 3.55], [1, 1])),
        row(4),
    ]
    c = one_cell(tmp_path, rows)
    assert (c["chunk_gap_n"], c["chunk_gap_p50_us"], c["chunk_gap_p99_us"]) == (3, 100_000, 300_000)
    assert c["chunks"] == 6


# --- acceptance and reconciliation


def edges(
    window: tuple[dict[str, float], dict[str, float]], cell: tuple[dict[str, float], dict[str, float]]
) -> list[dict[str, Any]]:
    names = ("window_start", "window_end", "idle_start", "idle_end")
    return [r for name, values in zip(names, (*window, *cell), strict=True) for r in edge(name, values)]


def test_a_failed_request_with_a_block_stays_out_of_the_figures(tmp_path: Path) -> None:
    """Its N is not known, so coverage and tokens per step would rise; it cannot stand in for an ok row either."""
    told = block(10, 40, 15, 30, [2, 4, 3, 1, 0])
    failed = {**told, "completion_tokens": None, "outcome": "stream_error"}
    c = one_cell(tmp_path, [row(0, **told), row(1, **failed)])
    assert (c["req_block_rows"], c["req_spec_steps"], c["req_completion_tokens"]) == (1, 10, 30)
    assert c["cell_req_spec_steps"] == 20, "the server's counters hold it all the same"


def test_blocks_equal_counters(tmp_path: Path) -> None:
    """Sums of the blocks equal the counters: residuals 0, all figures by hand."""
    rows = [
        row(0, **block(10, 40, 15, 30, [2, 4, 3, 1, 0])),
        row(1, **block(20, 80, 30, 60, [5, 5, 5, 5, 0])),
    ]
    zero, end = spec_counters(0, 0, 0, 0), spec_counters(30, 120, 45, 90)
    c = one_cell(tmp_path, rows, scrapes=edges((zero, end), (zero, end)))
    assert (c["acceptance_source"], c["req_block_rows"]) == ("response_block", 2)
    assert c["draft_acceptance_rate"] == 45 / 120
    assert c["mean_acceptance_length"] == 2.5
    assert c["tokens_per_target_step"] == 90 / 45
    assert c["coverage"] == 75 / 90
    assert c["req_histogram"] == [7, 9, 8, 6, 0]
    # The first block's histogram says 13 accepted, not 15: the distribution is left out, not mixed with the sums.
    assert c["acceptance_histogram"] is None
    assert c["spec_identity_breaches"] == [
        "response_block: the histogram implies another number of accepted tokens (1 rows)"
    ]
    assert [c[f"residual_{n}"] for n in ("spec_steps", "draft_tokens", "accepted_tokens", "generation_tokens")] == [
        0
    ] * 4
    assert (c["unexplained_share"], c["ctr_schema"]) == (0.0, "v1")


def test_sound_histogram_gives_survival(tmp_path: Path) -> None:
    """H = 4, 3, 0, 3: ten steps, twelve accepted; survival 0.6, 0.3, 0.3."""
    c = one_cell(tmp_path, [row(0, **block(10, 30, 12, 23, [4, 3, 0, 3]))])
    assert c["acceptance_histogram"] == [4, 3, 0, 3]
    assert c["position_survival"] == pytest.approx([0.6, 0.3, 0.3])
    assert c["conditional_acceptance"] == pytest.approx([0.6, 0.5, 1.0])
    assert (c["mean_acceptance_length"], c["draft_acceptance_rate"]) == (2.2, 0.4)
    assert c["spec_identity_breaches"] == []


def test_aborted_requests_leave_an_explained_gap(tmp_path: Path) -> None:
    """Two cut requests made the engine draft but returned no block: both sources are shown with the gap."""
    rows = [
        row(0, **block(10, 30, 15, 26)),
        row(1, **block(20, 60, 30, 51)),
        row(2, outcome="total_timeout"),
        row(3, outcome="censored"),
    ]
    zero, end = spec_counters(0, 0, 0, 0), spec_counters(38, 114, 52, 90)
    c = one_cell(tmp_path, rows, scrapes=edges((zero, end), (zero, end)))
    assert (c["req_spec_steps"], c["req_accepted_tokens"]) == (30, 45)
    assert (c["ctr_spec_steps"], c["ctr_accepted_tokens"]) == (38, 52)
    assert (c["residual_spec_steps"], c["residual_accepted_tokens"]) == (8, 7)
    assert c["mean_acceptance_length"] == 2.5
    assert (c["residual_generation_tokens"], c["unexplained_share"], c["explainable_tokens"]) == (13, 0.0, 128)
    assert "2 cut or failed requests" in c["residual_note"]


def test_foreign_traffic_shows(tmp_path: Path) -> None:
    """100 of the server's 190 tokens belong to nobody here."""
    zero, end = spec_counters(0, 0, 0, 0), spec_counters(1, 1, 1, 190)
    c = one_cell(tmp_path, [row(0, completion_tokens=90)], scrapes=edges((zero, end), (zero, end)))
    assert c["unexplained_share"] == pytest.approx(100 / 190)
    assert "foreign traffic" in c["residual_note"]


def test_unscraped_replica_shows(tmp_path: Path) -> None:
    """Our requests report more than the counters: that is no agreement either."""
    zero, end = spec_counters(0, 0, 0, 0), spec_counters(1, 1, 1, 40)
    c = one_cell(tmp_path, [row(0, completion_tokens=90)], scrapes=edges((zero, end), (zero, end)))
    assert c["unexplained_share"] == pytest.approx(50 / 40)


def test_counters_serve_where_blocks_are_missing(tmp_path: Path) -> None:
    """No blocks at all: the window's counters give the figures, positions included."""
    position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    start = edge("window_start", spec_counters(7, 21, 9, 100))
    end = edge("window_end", spec_counters(37, 81, 48, 200))
    for rows_, t, values in ((start, 0, (5, 3)), (end, 10, (31, 16))):
        rows_ += [
            sample(T0 + t * SECOND, position, v, labels=json.dumps({"position": str(i)}), edge=rows_[0]["edge"])
            for i, v in enumerate(values)
        ]
    c = one_cell(tmp_path, [row(0, completion_tokens=100)], scrapes=start + end)
    assert c["acceptance_source"] == "counters"
    assert (c["ctr_spec_steps"], c["ctr_accepted_per_pos"]) == (30, [26, 13])
    assert c["mean_acceptance_length"] == pytest.approx(2.3)
    assert c["position_survival"] == pytest.approx([26 / 30, 13 / 30])
    assert c["tokens_per_target_step"] == pytest.approx(100 / 61)
    assert "idle_start: never scraped" in c["edge_errors"]
    assert c["residual_generation_tokens"] is None


def test_failed_edge_scrape_is_null_never_zero(tmp_path: Path) -> None:
    """/metrics answers 500 at an edge: latency stays, acceptance is unknown, the error is named."""
    start = edge("window_start", spec_counters(0, 0, 0, 0))
    bad = sample(T0 + 10 * SECOND, "loadtest:scrape_ok", 0.0, edge="window_end", error="HTTP 500")
    c = one_cell(tmp_path, [row(0, e2e_us=5, completion_tokens=3)], scrapes=[*start, bad])
    assert c["e2e_p99_us"] == 5
    assert (c["ctr_spec_steps"], c["ctr_generation_tokens"], c["draft_acceptance_rate"]) == (None, None, None)
    assert f"window_end {ENDPOINT}: HTTP 500" in c["edge_errors"]


def test_hidden_engine_reset_is_flagged(tmp_path: Path) -> None:
    """One of two engines restarts while the sum still grows: lower bound by the reset rule, and a flag."""
    start = [
        *edge("window_start", spec_counters(1000, 3000, 2000, 0)),
        *edge("window_start", spec_counters(500, 1500, 800, 0), engine="1"),
    ]
    end = [
        *edge("window_end", spec_counters(50, 150, 150, 0)),
        *edge("window_end", spec_counters(2000, 6000, 3800, 0), engine="1"),
    ]
    c = one_cell(tmp_path, [row(0, completion_tokens=3)], scrapes=start + end)
    assert (c["ctr_spec_steps"], c["ctr_draft_tokens"], c["ctr_accepted_tokens"]) == (1550, 4650, 3150)
    assert c["mean_acceptance_length"] == pytest.approx(3.032258, abs=1e-6)
    assert c["counter_resets"] == [f"{ENDPOINT} engine=0"]


def test_reset_between_two_scrapes_is_flagged(tmp_path: Path) -> None:
    """An engine that restarted and outgrew its old count is only visible at 1 Hz."""
    middle = [sample(T0 + s * SECOND, "vllm:generation_tokens_total", v) for s, v in ((4, 900.0), (5, 10.0))]
    zero, end = spec_counters(0, 0, 0, 100), spec_counters(0, 0, 0, 2000)
    c = one_cell(tmp_path, [row(0)], scrapes=edges((zero, end), (zero, end))[:5] + middle)
    assert c["counter_resets"] == [f"{ENDPOINT} engine=0"]


def test_replicas_with_equal_labels_are_summed(tmp_path: Path) -> None:
    """Two replicas behind a router carry the same labels; the endpoint keeps them apart. Warm counts are no growth."""
    scrapes = []
    for endpoint, a, b in (
        ("http://a", (0, 0, 0, 0), (40, 120, 60, 0)),
        ("http://b", (100, 300, 100, 0), (160, 480, 160, 0)),
    ):
        scrapes += edge("window_start", spec_counters(*a), endpoint=endpoint)
        scrapes += edge("window_end", spec_counters(*b), endpoint=endpoint)
    c = one_cell(tmp_path, [row(0, completion_tokens=3)], scrapes=scrapes)
    assert (c["ctr_spec_steps"], c["ctr_draft_tokens"], c["ctr_accepted_tokens"]) == (100, 300, 120)
    assert (c["mean_acceptance_length"], c["draft_acceptance_rate"]) == (2.2, 0.4)


def test_prefix_hit_rate_is_of_the_window(tmp_path: Path) -> None:
    """(1000 - 100) / (6000 - 5000), not the server's lifetime 1000 / 6000."""
    names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    start = dict(zip(names, (5000.0, 100.0), strict=True))
    end = dict(zip(names, (6000.0, 1000.0), strict=True))
    c = one_cell(tmp_path, [row(0)], scrapes=edge("window_start", start) + edge("window_end", end))
    assert (c["prefix_cache_queries"], c["prefix_cache_hits"], c["prefix_cache_hit_rate"]) == (1000, 900, 0.9)


def test_server_histograms_give_bounds_of_the_window(tmp_path: Path) -> None:
    """100 requests in the window, 96 of them up to 0.1 s: P95 lies in 0..0.1 s, P99 in 0.1..0.5 s."""
    family = "vllm:time_to_first_token_seconds_bucket"

    def buckets(name: str, counts: tuple[float, ...]) -> list[dict[str, Any]]:
        t = {"window_start": 0, "window_end": 10}[name]
        return edge(name, {}) + [
            sample(T0 + t * SECOND, family, v, labels=json.dumps({"le": le}), edge=name)
            for le, v in zip(("0.1", "0.5", "+Inf"), counts, strict=True)
        ]

    c = one_cell(
        tmp_path, [row(0)], scrapes=buckets("window_start", (50, 50, 50)) + buckets("window_end", (146, 149, 150))
    )
    assert (c["server_ttft_p95_lo_us"], c["server_ttft_p95_hi_us"]) == (0, 100_000)
    assert (c["server_ttft_p99_lo_us"], c["server_ttft_p99_hi_us"]) == (100_000, 500_000)
    assert c["server_e2e_p99_hi_us"] is None


# --- server state at send time


def test_state_is_the_last_scrape_before_send(tmp_path: Path) -> None:
    """Two engines are summed, the fuller cache is taken; before the first scrape and after silence it is null."""
    scrapes = []
    for s, (a, b) in ((1, (3, 4)), (2, (5, 6))):
        t = T0 + s * SECOND
        scrapes.append(sample(t, "loadtest:scrape_ok", 1.0))
        for engine, running in (("0", a), ("1", b)):
            scrapes.append(sample(t, "vllm:num_requests_running", float(running), engine=engine))
            scrapes.append(sample(t, "vllm:kv_cache_usage_perc", running / 10, engine=engine))
    sends = {0: 0.5, 1: 1.0, 2: 1.9, 3: 2.5, 4: 9.0}
    rows = [row(i, send_ns=T0 + int(s * SECOND)) for i, s in sends.items()] + [row(5, send_ns=None, outcome="censored")]
    c = one_cell(tmp_path, rows, scrapes=scrapes)
    data = open_run(tmp_path).requests(["seq", "running", "kv_cache_usage", "waiting"]).to_pydict()
    assert data["running"] == [None, 7, 7, 11, None, None]
    assert data["kv_cache_usage"] == [None, 0.4, 0.4, 0.6, None, None]
    assert data["waiting"] == [None] * 6
    assert (c["running_mean"], c["kv_cache_usage_max"], c["waiting_mean"]) == (9, 0.6, None)
    assert (c["scrapes_expected"], c["scrapes_ok"], c["scrape_max_gap_s"]) == (10, 2, 8.0)


# --- damage


def test_torn_file_keeps_the_rows_before_the_tear(tmp_path: Path) -> None:
    """kill -9 in mid-write: 3 of 4 batches are there, the file is named, the missing rows are counted."""
    rows = [row(i, completion_tokens=1) for i in range(8)]
    make_run(tmp_path, [CELL])
    folder = make_cell_folder(tmp_path, CELL, rows)
    write_rows(folder, rows, batch=2)
    path = folder / "worker-0.arrows"
    raw = path.read_bytes()
    path.write_bytes(raw[:-200])
    c = merged_cell(tmp_path)
    assert c["rows_all_phases"] == 6
    assert c["torn_files"][0].startswith("worker-0.arrows: torn after 6 rows")
    assert c["worker_rows_missing"] == 2
    assert path.read_bytes() == raw[:-200]


def test_stream_cut_between_batches_reads_clean_but_rows_are_missed(tmp_path: Path) -> None:
    """Such a cut leaves no trace in the file; only done.json tells."""
    rows = [row(i) for i in range(4)]
    make_run(tmp_path, [CELL])
    folder = make_cell_folder(tmp_path, CELL, rows)
    write_rows(folder, rows[:2])
    path = folder / "worker-0.arrows"
    path.write_bytes(path.read_bytes()[:-8])
    c = merged_cell(tmp_path)
    assert (c["torn_files"], c["unclosed_files"], c["worker_rows_missing"]) == ([], ["worker-0.arrows"], 2)


@pytest.mark.parametrize("content", [b"", b"\xff\xff", b"not arrow at all, but long enough to look at"])
def test_unreadable_worker_file_is_reported(tmp_path: Path, content: bytes) -> None:
    """An empty or foreign file costs its own rows only."""
    rows = [row(0, completion_tokens=1), row(1, worker=1, request_id="1-1-1")]
    make_run(tmp_path, [CELL])
    folder = make_cell_folder(tmp_path, CELL, rows)
    (folder / "worker-1.arrows").write_bytes(content)
    c = merged_cell(tmp_path)
    assert (c["rows_all_phases"], c["worker_rows_missing"]) == (1, 1)
    assert len(c["torn_files"]) == 1


def test_zeros_after_a_power_cut_are_no_clean_end(tmp_path: Path) -> None:
    """A tail of zeros reads as an end mark."""
    make_run(tmp_path, [CELL])
    folder = make_cell_folder(tmp_path, CELL, [row(0)])
    path = folder / "worker-0.arrows"
    path.write_bytes(path.read_bytes()[:-8] + b"\x00" * 64)
    assert "60 stray bytes after 1 rows" in merged_cell(tmp_path)["torn_files"][0]


def test_lost_worker_and_merged_percentiles(tmp_path: Path) -> None:
    """99 requests of 10 ms, one of 1 s from another worker: P99 is 10 ms, not a mean; the third worker is missed."""
    rows = [row(i, e2e_us=10_000) for i in range(99)] + [row(99, worker=1, e2e_us=1_000_000, request_id="1-1-99")]
    c = one_cell(tmp_path, rows, done_json=done(rows, workers_expected=3, workers_missing=[2]))
    assert (c["e2e_p50_us"], c["e2e_p99_us"], c["e2e_p999_us"]) == (10_000, 10_000, 1_000_000)
    assert (c["workers_expected"], c["workers_reported"], c["workers_missing"]) == (3, 2, ["2"])


def test_duplicate_ids_are_counted_and_kept(tmp_path: Path) -> None:
    """A batch that came twice is a finding; the same prompt twice is not."""
    rows = [row(i, prompt_id="a") for i in range(4)]
    c = one_cell(tmp_path, rows)
    assert (c["duplicate_request_ids"], c["rows_all_phases"]) == (0, 4)
    write_rows(tmp_path / "cells" / CELL.cell_id, [*rows, rows[1]])
    c = merged_cell(tmp_path)
    assert (c["duplicate_request_ids"], c["rows_all_phases"], c["worker_rows_extra"]) == (1, 5, 1)


def test_several_segments_of_a_worker(tmp_path: Path) -> None:
    """Rotated files of long soaks are one stream."""
    rows = [row(i) for i in range(6)]
    make_run(tmp_path, [CELL])
    folder = make_cell_folder(tmp_path, CELL, rows)
    for segment in range(3):
        write_rows(folder, rows[2 * segment : 2 * segment + 2])
        (folder / "worker-0.arrows").rename(folder / f"worker-0-{segment}.arrows")
    c = merged_cell(tmp_path)
    assert (c["rows_all_phases"], c["worker_rows_missing"]) == (6, 0)
    assert open_run(tmp_path).requests(["seq"])["seq"].to_pylist() == [0, 1, 2, 3, 4, 5]


def test_cell_states(tmp_path: Path) -> None:
    """Done, cut short, server failed, not come to: four states, and nothing is 0 that was not measured."""
    cells = [make_cell(1), make_cell(2, load=16), make_cell(3, BASELINE), make_cell(4, BASELINE, load=16)]
    eagle = make_cell(5, type(NGRAM)(name="eagle", method="eagle3", gamma=3, sim={}))
    make_run(tmp_path, [*cells, eagle], state="running")
    make_cell_folder(tmp_path, cells[0], [row(0, e2e_us=5)])
    make_cell_folder(tmp_path, cells[1], [row(0, e2e_us=7)], finished=False)
    write_json(tmp_path / "servers" / "02-eagle" / "failed.json", {"reason": "exit 1", "diagnosis": "out of memory"})
    (tmp_path / "cells" / f"{cells[2].cell_id}.unfinished-1").mkdir()
    summary = merge_run(tmp_path)
    c = {x["cell_id"]: x for x in open_run(tmp_path).cells.to_pylist()}
    assert [x["state"] for x in c.values()] == ["done", "unfinished", "not_measured", "not_measured", "failed"]
    assert [x["is_baseline"] for x in c.values()] == [False, False, True, True, False]
    cut = c[cells[1].cell_id]
    assert (cut["e2e_p50_us"], cut["window_s"], cut["request_rate"], cut["output_tok_s"]) == (7, None, None, None)
    assert c[eagle.cell_id]["state_reason"] == "the server did not start: exit 1; out of memory"
    empty = c[cells[2].cell_id]
    assert all(empty[n] is None for n in ("sent", "ok", "e2e_n", "rows_all_phases", "error_rate", "completion_tokens"))
    assert "earlier try" in summary.warnings[0]
    assert "2 not measured" in summary.text()


def test_provenance_reaches_the_cell(tmp_path: Path) -> None:
    """Synthetic acceptance and contradictions are facts that the judge needs."""
    told = {
        "synthetic_acceptance": True,
        "contradictions": ["gamma"],
        "versions": {"vllm": "0.32.0"},
        "simulated": False,
    }
    c = one_cell(tmp_path, [row(0)], provenance=told)
    assert (c["synthetic_acceptance"], c["simulated"], c["contradictions"]) == (True, True, ["gamma"])
    assert json.loads(c["provenance_equal"])["versions"] == {"vllm": "0.32.0"}


# --- files


def test_merging_again_changes_nothing(tmp_path: Path) -> None:
    """Same raw files, same bytes; leftovers of a killed merge and stale partitions go away."""
    make_big_run(tmp_path, 300)
    merge_run(tmp_path)
    before = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    (tmp_path / ".merge-killed").mkdir()
    (tmp_path / ".merge-killed" / "part").write_text("x")
    stale = tmp_path / "requests" / "config=old" / "mix=m" / "load=c1"
    stale.mkdir(parents=True)
    (stale / "part-0.parquet").write_bytes(b"old")
    merge_run(tmp_path)
    assert {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_files_carry_schema_and_provenance(tmp_path: Path) -> None:
    """A Parquet file that leaves its folder still says what it is."""
    one_cell(tmp_path, [row(0)], provenance={"versions": {}})
    [part] = (tmp_path / "requests").glob("config=ngram-4/mix=code/load=c8/part-*.parquet")
    schema = pq.read_schema(part)
    told = {k.decode(): v.decode() for k, v in schema.metadata.items() if k.startswith(b"loadtest.")}
    assert (told["loadtest.schema"], told["loadtest.run_id"], told["loadtest.plan_sha256"]) == (
        "1",
        "test-run",
        "ab" * 32,
    )
    assert len(told["loadtest.provenance_sha256"]) == 64
    assert schema.remove_metadata().equals(REQUESTS_SCHEMA)
    assert open_run(tmp_path).cells.schema.equals(CELLS_SCHEMA)


def test_duckdb_reads_the_same_sums(tmp_path: Path) -> None:
    """SQL over the partitions agrees with cells.parquet; key columns come from path and file alike."""
    make_big_run(tmp_path, 500)
    c = merged_cell(tmp_path)
    query = f"""select count(*), sum(completion_tokens), sum(accepted_tokens), sum(len(chunk_offset_us)),
        quantile_disc(e2e_us, 0.99), min(config), min("load") from '{tmp_path}/requests/**/*.parquet'"""
    found = duckdb.sql(query).fetchall()[0]
    assert found == (
        *(c["sent"], c["completion_tokens"], c["req_accepted_tokens"], c["chunks"], c["e2e_p99_us"]),
        *("ngram-4", "c8"),
    )
    assert duckdb.sql(f"select count(*) from '{tmp_path}/server.parquet'").fetchall()[0][0] == 70
    assert duckdb.sql(f"select state from '{tmp_path}/cells.parquet'").fetchall() == [("done",)]


def test_hlog_is_read_back_with_its_tags(tmp_path: Path) -> None:
    """Every metric of every cell is a tagged histogram whose P99 is the exact one within 0.2 %."""
    make_big_run(tmp_path, 300)
    c = merged_cell(tmp_path)
    entries = {e.tag: e for e in hdr.read_hlog(tmp_path / "latency.hlog")}
    assert set(entries) == {f"{CELL.cell_id}.{m}" for m in ("ttft", "tpot", "e2e", "chunk_gap")}
    for metric in ("ttft", "e2e", "chunk_gap"):
        [p99] = hdr.percentiles(entries[f"{CELL.cell_id}.{metric}"].histogram, [99])
        assert p99 == pytest.approx(c[f"{metric}_p99_us"], rel=0.002)
    assert entries[f"{CELL.cell_id}.e2e"].start_s == T0 / 1e9


def test_live_histogram_that_lost_values_shows(tmp_path: Path) -> None:
    """live.hlog is compared with the rows: equal, then without its slowest request."""
    rows = [row(i, e2e_us=1000 * (i + 1)) for i in range(50)]
    make_run(tmp_path, [CELL])
    folder = make_cell_folder(tmp_path, CELL, rows)
    for n, limit in ((50, 0.0), (40, 0.19)):
        histogram = hdr.new_histogram()
        hdr.record(histogram, [1000 * (i + 1) for i in range(n)])
        hdr.write_hlog(folder / "live.hlog", hdr.one_interval({"e2e": histogram}, T0, T0 + SECOND))
        c = merged_cell(tmp_path)
        assert (c["hdr_max_rel_error"] < 0.002) == (limit == 0.0)
        assert c["hdr_max_rel_error"] >= limit
    assert c["notes"][-1] == "live.hlog holds 40 of e2e, the rows 50"


def test_value_above_the_histogram_is_not_lost(tmp_path: Path) -> None:
    """A request of two hours stays the exact maximum in the rows and is counted as overflow."""
    c = one_cell(tmp_path, [row(i, e2e_us=v) for i, v in enumerate((100_000, 200_000, 300_000, 7_200_000_000))])
    assert (c["e2e_n"], c["e2e_p50_us"], c["e2e_p99_us"], c["hdr_overflow"]) == (4, 200_000, 7_200_000_000, 1)


def test_requests_filter_and_columns(tmp_path: Path) -> None:
    """The judge reads a few columns of one cell."""
    cells = [make_cell(1), make_cell(2, BASELINE)]
    make_run(tmp_path, cells)
    for cell in cells:
        make_cell_folder(tmp_path, cell, [row(0, e2e_us=cell.index), row(1, e2e_us=9, outcome="empty")])
    merge_run(tmp_path)
    data = open_run(tmp_path)
    where = (pc.field("config") == "baseline") & (pc.field("outcome") == "ok")
    assert data.requests(["e2e_us", "gamma"], where).to_pylist() == [{"e2e_us": 2, "gamma": None}]
    assert data.requests().num_rows == 4
    with pytest.raises(KeyError, match="latency"):
        data.requests(["latency"])


def test_nothing_measured_is_still_a_run(tmp_path: Path) -> None:
    """A run killed before its first cell merges and opens."""
    make_run(tmp_path, [CELL])
    assert merged_cell(tmp_path)["state"] == "not_measured"
    assert open_run(tmp_path).requests(["seq"]).num_rows == 0


@pytest.mark.parametrize(
    ("run", "text"),
    [(None, "no run.json"), ("{", "cannot be read as JSON"), ('{"schema": 99}', "schema 99"), ("[]", "schema 'list'")],
)
def test_wrong_folder_is_told(tmp_path: Path, run: str | None, text: str) -> None:
    """No traceback for a wrong path, and nothing is written into it."""
    if run is not None:
        (tmp_path / "run.json").write_text(run)
    for function in (merge_run, open_run):
        with pytest.raises(RunFolderError, match=text):
            function(tmp_path)
    assert not (tmp_path / "cells.parquet").exists()


def test_unmerged_and_foreign_versions_are_told(tmp_path: Path) -> None:
    """Not merged, merged by another version, damaged: each says what to do."""
    make_run(tmp_path, [CELL])
    with pytest.raises(RunFolderError, match="not merged yet: run `loadtest merge"):
        open_run(tmp_path)
    merge_run(tmp_path)
    table = pq.read_table(tmp_path / "cells.parquet")
    pq.write_table(table.replace_schema_metadata({"loadtest.schema": "7"}), tmp_path / "cells.parquet")
    with pytest.raises(RunFolderError, match="schema 7"):
        open_run(tmp_path)
    (tmp_path / "cells.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(RunFolderError, match="cannot be read"):
        open_run(tmp_path)


def test_columns_added_later_are_null_in_older_raw_files(tmp_path: Path) -> None:
    """A raw file of an earlier build lacks new nullable columns; its rows are still good."""
    make_run(tmp_path, [CELL])
    folder = make_cell_folder(tmp_path, CELL, [row(0, e2e_us=5)])
    with pa.OSFile(str(folder / "worker-0.arrows")) as f:
        table = pa.ipc.open_stream(f).read_all().drop_columns(["output_bytes", "turn"])
    with pa.OSFile(str(folder / "worker-0.arrows"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert "column turn is missing" in merged_cell(tmp_path)["torn_files"][0]
    table = table.append_column(pa.field("turn", pa.int16(), nullable=False), pa.array([0], pa.int16()))
    with pa.OSFile(str(folder / "worker-0.arrows"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    c = merged_cell(tmp_path)
    assert (c["torn_files"], c["e2e_p50_us"]) == ([], 5)


def test_v0_server_gives_the_rate_only(tmp_path: Path) -> None:
    """Counters without drafts: A/D of the window (60 of 100), not the gauge 0.42, and no acceptance length."""
    names = ("draft_acceptance_rate", "num_accepted_tokens_total", "num_draft_tokens_total", "num_emitted_tokens_total")
    pages = (("window_start", (0.31, 940, 3000, 1700)), ("window_end", (0.42, 1000, 3100, 1770)))
    scrapes = []
    for name, values in pages:
        scrapes += edge(name, {f"vllm:spec_decode_{n}": float(v) for n, v in zip(names, values, strict=True)})
    c = one_cell(tmp_path, [row(0, completion_tokens=3)], scrapes=scrapes)
    assert (c["ctr_schema"], c["ctr_draft_tokens"], c["ctr_emitted_tokens"], c["ctr_spec_steps"]) == (
        "v0",
        100,
        70,
        None,
    )
    assert (c["draft_acceptance_rate"], c["mean_acceptance_length"], c["ctr_accepted_per_pos"]) == (0.6, None, None)


@pytest.mark.parametrize("version", sorted(p.name for p in (Path(__file__).parents[1] / "data/merge").glob("schema-*")))
def test_committed_runs_are_read_for_ever(version: str, data_dir: Path) -> None:
    """Each schema version has a small merged run; today's reader must open it."""
    data = open_run(data_dir / "merge" / version)
    c = data.cells.to_pylist()
    assert [x["state"] for x in c] == ["done", "not_measured"]
    assert (c[0]["sent"], c[0]["completion_tokens"], c[0]["acceptance_source"]) == (20, 315, "response_block")
    rows = data.requests(["completion_tokens", "e2e_us", "config"], pc.field("outcome") == "ok")
    assert (rows.num_rows, pc.sum(rows["completion_tokens"]).as_py()) == (20, 315)
    assert set(rows["config"].to_pylist()) == {"ngram-4"}


def test_scrapes_that_overlap_have_no_order(tmp_path: Path) -> None:
    """An edge was asked for before the 1 Hz scrape was answered and read an older count: no restart."""
    newer = sample(T0 + 4 * SECOND, "vllm:generation_tokens_total", 900.0)
    older = sample(T0 + 4 * SECOND + 9, "vllm:generation_tokens_total", 890.0, t_request_ns=T0 + 4 * SECOND - 9)
    later = sample(T0 + 5 * SECOND, "vllm:generation_tokens_total", 895.0)
    ends = edge("window_start", spec_counters(0, 0, 0, 100))
    assert one_cell(tmp_path / "a", [row(0)], scrapes=[*ends, newer, older])["counter_resets"] == []
    fell = one_cell(tmp_path / "b", [row(0)], scrapes=[*ends, newer, older, later])
    assert fell["counter_resets"] == [f"{ENDPOINT} engine=0"]
