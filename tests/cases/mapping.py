"""The one table between the names of expected.json and what the product gives (`drivers.py` says what a name holds).

* `Fig(where, by)`: the figure at `where`, converted by `by` to the case's unit, equals the expected value.
* `ms(where)`: microseconds that must equal the expected milliseconds, within the jitter of the replay server.
* `Holds(where)`: the text at `where` holds the expected text.
* `Told(where, *words)`: the expected value is prose; the text at `where` must hold these words.
* `Ours(where, value, why)`: the case expects another figure; `value` is what we hold for right, and why.
* `Words(why)`: not a figure of the product; not asserted, for this reason.
"""

from __future__ import annotations

from tests.cases.entries import (
    Entry,
    Fig,
    Holds,
    Ours,
    Words,
    by_id,
    failed_edges,
    four_rows,
    gaps_ms,
    ints,
    is_ok,
    kept,
    last,
    lower,
    ms,
    only,
    same,
    skipped,
    spread,
    system,
    texts,
    told,
)

_DELTA = {
    "delta.drafts": Fig("cell.ctr_spec_steps"),
    "delta.draft_tokens": Fig("cell.ctr_draft_tokens"),
    "delta.accepted": Fig("cell.ctr_accepted_tokens"),
    "delta.accepted_per_pos": Fig("cell.ctr_accepted_per_pos"),
}
_RATES = {
    "mean_acceptance_length": Fig("cell.mean_acceptance_length"),
    "draft_acceptance_rate": Fig("cell.draft_acceptance_rate"),
}
_STREAM: dict[str, Entry] = {
    "ok": Fig("row.outcome", is_ok),
    "ttft_ms": ms("row.ttft_us"),
    "ttft_content_ms": ms("row.ttft_visible_us"),
    "itl_chunk_ms": Fig("row.chunk_offset_us", gaps_ms, timed=True),
    "itl_max_ms": ms("row.max_gap_us"),
    "tpot_ms": ms("row.tpot_us"),
    "e2e_ms": ms("row.e2e_us"),
    "e2e_last_token_ms": ms("row.e2e_us"),
    "e2e_stream_end_ms": Fig("row", lambda r: (r["end_ns"] - r["send_ns"]) / 1e6, timed=True),
    "completion_tokens": Fig("row.completion_tokens"),
    "output_tokens": Fig("row.completion_tokens"),
    "prompt_tokens": Fig("row.prompt_tokens"),
    "chunks_with_tokens": Fig("row.chunks"),
    "tokens_per_chunk": Fig("row", lambda r: r["completion_tokens"] / r["chunks"]),
    "finish_reason": Fig("row.finish_reason"),
    "content": Fig("row.output_text"),
    "text": Fig("row.output_text"),
    "reasoning": Fig("row.reasoning_text"),
    "error": Holds("row.error"),
    "warning": Holds("row.warning"),
    "flag": Holds("row.warning"),
}
_BLOCK = {
    "num_spec_steps": "spec_steps",
    "num_accepted_draft_tokens": "accepted_tokens",
    "num_draft_tokens": "draft_tokens",
}
_UNDEFINED = "Ratios per request are not stored: they are formed from sums, A/D where D = 0 is null in cells.parquet"


SHARE_OF_ALL = (
    "Failed requests count as over every latency limit, so a P95 with 70 % failures cannot pass (docs/method.md)"
)
NO_ERROR_STATE = "The gate knows PASS, FAIL and INCONCLUSIVE; what cannot be judged is INCONCLUSIVE, exit code 98"

MAP: dict[str, dict[str, Entry]] = {
    "01": {
        **_DELTA, **_RATES,
        "per_position_rate": Fig("cell.position_survival"),
        "engines": Fig("cell.ctr_engines"),
        "identity_al_eq_1_plus_sum_pos": Fig(
            "cell", lambda c: abs(1 + sum(c["position_survival"]) - c["mean_acceptance_length"]) < 1e-9
        ),
    },
    "02": {
        **_RATES,
        "reset_detected": Fig("cell.counter_resets", bool),
        "reset_series": Fig("cell.counter_resets", lambda rs: [r.split(" ")[-1] for r in rs]),
        "delta_reset_rule.drafts": Fig("cell.ctr_spec_steps"),
        "delta_reset_rule.draft_tokens": Fig("cell.ctr_draft_tokens"),
        "delta_reset_rule.accepted": Fig("cell.ctr_accepted_tokens"),
        "flag": told("verdict", "counter_reset", "engine=0", "INCONCLUSIVE"),
    },
    "04": {
        "samples": Fig("samples", lambda ss: sum(s["edge"] == "window_end" and "per_pos" in s["metric"] for s in ss)),
        "model_name": Fig("samples", last("vllm:spec_decode_num_drafts_total", "model")),
        "accepted_per_pos.0": Fig("cell.ctr_accepted_per_pos", lambda p: p[0]),
        "accepted_per_pos.1": Fig("cell.ctr_accepted_per_pos", lambda p: p[1]),
        "drafts": Fig("cell.ctr_spec_steps"),
    },
    "05": {
        **_DELTA, **_RATES,
        "schema": Fig("cell.ctr_schema"),
        "delta.emitted": Fig("cell.ctr_emitted_tokens"),
        "mean_acceptance_length_if_k_is_5": Words(
            "Not derived: the configured k bounds the drafts of a step, n-gram may propose fewer; A/D stands alone"
        ),
    },
    "07": {
        **_DELTA, **_RATES,
        "per_position_rate": Fig("cell.position_survival"),
        "note": Words("A convention of other tools; ours is null with ctr_spec_steps = 0 beside it"),
        "strict_json": Fig("verdict", lambda v: "NaN" not in str(v) and "nan" not in str(v)),
    },
    "08": {
        **_RATES,
        "tokens_via_spec_steps": Fig("cell", lambda c: c["coverage"] * c["ctr_generation_tokens"]),
        "tokens_without_spec": Fig("cell", lambda c: (1 - c["coverage"]) * c["ctr_generation_tokens"]),
        "tokens_per_target_step": Fig("cell.tokens_per_target_step"),
        "drafting_coverage_tokens": Fig("cell.coverage"),
    },
    "10": {
        **_DELTA,
        "mean_acceptance_length": _RATES["mean_acceptance_length"],
        "request_model": Fig("asked.model"),
        "response_model": Fig("answer.response_model"),
        "metrics_label": Fig("samples", last("vllm:spec_decode_num_drafts_total", "model")),
        "rule": Words("Ours: the counters of the name in the responses; test_metrics_variants.py has the rest"),
    },
    "11": {
        **_DELTA, **_RATES,
        "endpoints": Fig("cell.ctr_engines"),
        "router_page": told("router.ctr_notes", "no spec series", "point metrics_url at the engine"),
        "if_replica_b_after_scrape_fails": Fig(
            "half", lambda c: "acceptance incomplete/null, latency kept"
            if c["draft_acceptance_rate"] is None and c["ctr_spec_steps"] is None and c["e2e_p50_us"] == 100_000 else c
        ),
    },
    "13": {
        "latency_results": Fig("rows", kept),
        "spec_counters": Fig("cell.ctr_spec_steps"),
        "scrape_errors": Fig("samples", failed_edges),
        "gate_on_acceptance": Ours("verdict.status", "INCONCLUSIVE", NO_ERROR_STATE),
    },
    "14": {
        "follow_redirect_same_host": Fig("followed"),
        "spec_decode_present": Fig("cell.ctr_schema", lambda s: s in ("v0", "v1")),
        "message": Holds("told"),
        "latency_results": Fig("rows", kept),
    },
    "16": {
        **_RATES,
        "drafts": Fig("cell.ctr_spec_steps"),
        "draft_tokens": Fig("cell.ctr_draft_tokens"),
        "accepted": Fig("cell.ctr_accepted_tokens"),
        "nan_gauge": Fig("samples", last("vllm:kv_cache_usage_perc")),
        "inf_sum": Ours("samples", "absent", "Kept out: no row", last("vllm:time_to_first_token_seconds_sum")),
        "crash": Fig("cell.state", lambda s: s != "done"),
    },
    "17": {
        "drafts": Fig("cell.ctr_spec_steps"),
        "draft_tokens": Fig("cell.ctr_draft_tokens"),
        "accepted": Fig("cell.ctr_accepted_tokens"),
        "mean_acceptance_length": _RATES["mean_acceptance_length"],
    },
    "19": {
        "counters.drafts": Fig("cell.ctr_spec_steps"),
        "counters.accepted": Fig("cell.ctr_accepted_tokens"),
        "counters.mean_acceptance_length": Fig("cell", lambda c: 1 + c["ctr_accepted_tokens"] / c["ctr_spec_steps"]),
        "requests.spec_steps": Fig("cell.req_spec_steps"),
        "requests.accepted": Fig("cell.req_accepted_tokens"),
        "requests.mean_acceptance_length": Fig("cell.mean_acceptance_length"),
        "unattributed.drafts": Fig("cell.residual_spec_steps"),
        "unattributed.accepted": Fig("cell.residual_accepted_tokens"),
        "coverage_drafts": Fig("cell", lambda c: c["cell_req_spec_steps"] / c["cell_ctr_spec_steps"]),
        "result": told("trust", "acceptance_residual"),
    },
    "20": {
        "baseline_hit_rate": Fig("base.prefix_cache_hit_rate"),
        "candidate_hit_rate": Fig("cand.prefix_cache_hit_rate"),
        "comparable": Fig("trusted"),
        "flag": Holds("reasons"),
    },
    "22": {
        "rows": Fig("rows", four_rows),
        "pooled_over_all.drafts": Fig("cell.req_draft_tokens"),
        "pooled_over_all.draft_acceptance_rate": Fig("cell.draft_acceptance_rate"),
        "note": Words(_UNDEFINED),
    },
    "23": {
        "all_rows.num_spec_steps": Fig("rows", lambda rs: only(r["spec_steps"] for r in rs)),
        "all_rows.num_accepted_draft_tokens": Fig("rows", lambda rs: only(r["accepted_tokens"] for r in rs)),
        "all_rows.num_draft_tokens": Fig("rows", lambda rs: only(r["draft_tokens"] for r in rs)),
        "all_rows.acceptance_histogram": Fig(
            "rows", lambda rs: list(only(tuple(r["acceptance_histogram"]) for r in rs))
        ),
        "all_rows.mean_acceptance_length": Fig("cell.mean_acceptance_length"),
        "all_rows.draft_acceptance_rate": Fig("cell.draft_acceptance_rate"),
        "unknown_keys": Fig(
            "rows", lambda rs: "ignored" if all(r["warning"] is None for r in rs) else rs[2]["warning"]
        ),
        "minimum": Words("All three rows parse, which is more"),
    },
    "25": {
        "num_spec_steps": Fig("row.spec_steps"),
        "num_accepted_draft_tokens": Fig("row.accepted_tokens"),
        "histogram_implied_accepted": Fig("row.acceptance_histogram", lambda h: sum(j * n for j, n in enumerate(h))),
        "consistent": Fig("cell.spec_identity_breaches", lambda b: not b),
        "flag": Holds("row.warning"),
        "mean_acceptance_length_from_counters": Fig("cell.mean_acceptance_length"),
    },
    "26": {
        "mean_acceptance_length": Fig("cell.mean_acceptance_length"),
        "tokens_over_steps": Fig("row", lambda r: r["completion_tokens"] / r["spec_steps"]),
        "upper_bound_completion_tokens": Fig("row", lambda r: 1 + r["spec_steps"] + r["accepted_tokens"]),
        "completion_tokens": Fig("row.completion_tokens"),
        "valid": Fig("row", lambda r: r["outcome"] == "ok" and r["warning"] is None),
    },
    "28": {
        "k3.mean_acceptance_length": Fig("base.mean_acceptance_length"),
        "k3.draft_acceptance_rate": Fig("base.draft_acceptance_rate"),
        "k7.mean_acceptance_length": Fig("cand.mean_acceptance_length"),
        "k7.draft_acceptance_rate": Fig("cand.draft_acceptance_rate"),
        "comparable_metric": told("verdict", "mean_acceptance_length or the acceptance per position"),
        "flag": Holds("said"),
    },
    **dict.fromkeys(("29", "31", "32", "34", "38", "40", "44", "46", "49"), _STREAM),
    "35": {
        **_STREAM,
        "strict_sse_alternative.ok": Words("The tolerant reading is ours: what a server said at the end counts"),
        "strict_sse_alternative.completion_tokens": Words("See strict_sse_alternative.ok"),
    },
    "37": {**_STREAM, "ttft_rule": Words("Ours: the read that completes the event (103)")},
    "41": {**_STREAM, "itl_per_token_if_usage_per_chunk_ms": Fig("row", spread, timed=True)},
    "43": {**_STREAM, "in_tpot_sample": Fig("row.tpot_us", lambda t: t is not None)},
    "47": {**_STREAM, "preemptions_delta": Fig("cell.preemptions")},
    "50": {
        "success": Fig("cell.ok"),
        "failed": Fig("cell.failed"),
        "error_rate": Fig("cell.error_rate"),
        "e2e_p50_ms": Fig("cell.e2e_p50_us", lambda us: us / 1000),
        "e2e_p95_ms": Fig("cell.e2e_p95_us", lambda us: us / 1000),
        "goodput_ratio_e2e_le_200": Fig("checks", lambda c: c["goodput"].estimate),
        "gate.e2e_p95<=200": Ours("checks", "FAIL", SHARE_OF_ALL, lambda c: c["e2e"].status),
        "gate.error_rate<=0.01": Fig("checks", lambda c: lower(c["errors"].status)),
        "overall": Fig("verdict.status", lower),
    },
    "52": {
        "ok": Fig("cell.ok"),
        "failed": Fig("cell.failed"),
        "error": Holds("rows"),
        "run_terminates": Fig("cell.state", lambda s: s == "done"),
        "max_wall_s_about": Ours(
            "rows", 3, "The plan's read timeout, 3 s here instead of 60",
            lambda rs: round(max(r["end_ns"] - r["send_ns"] for r in rs) / 1e9),
        ),
        "ttft_p99_ms": Fig("cell.ttft_p99_us"),
        "overall": Fig("checks", lambda found: "fail" if "FAIL" in found and "PASS" not in found else found),
    },
    "53": {
        "rows_ok": Fig("rows", lambda rs: [is_ok(r["outcome"]) for r in rs]),
        "tokens_total": Fig("cell.completion_tokens"),
    },
    "55": {
        "baseline_mean_tokens": Fig("base.mean_output_tokens"),
        "candidate_mean_tokens": Fig("cand.mean_output_tokens"),
        "length_ratio": Fig("length_ratio"),
        "e2e_speedup_raw": Fig("", lambda s: s["base"]["mean_e2e_us"] / s["cand"]["mean_e2e_us"]),
        "tpot_baseline_ms": Fig("base.tpot_p50_us", lambda us: us / 1000),
        "tpot_candidate_ms": Fig("cand.tpot_p50_us", lambda us: us / 1000),
        "comparable_e2e": Fig("trusted"),
        "flag": Holds("reasons"),
    },
    "56": {
        "requests_sent": Fig("cell.sent"),
        "distinct_request_ids": Fig("rows", lambda rs: len({r["request_id"] for r in rs})),
        "source_id_kept": Fig("rows", lambda rs: [r["prompt_id"] for r in rs]),
        "joined_rows": Fig("joined", len),
    },
    "58": {
        "count": Fig("hdr.total_count"),
        "overflow": Fig("cell.hdr_overflow"),
        "max_ms": Fig("rows", lambda rs: max(r["e2e_us"] for r in rs) / 1000),
        "p50_ms": Fig("cell.e2e_p50_us", lambda us: us / 1000),
        "p99": Fig("", lambda s: ">= 3600000 (clamped) and flagged"
                   if s["hdr_p99"] >= 3_600_000_000 and "hdr_mismatch" in s["reasons"] else s["hdr_p99"]),
        "never": Words("count and max_ms say so"),
    },
    "59": {
        "merged.count": Fig("cell.e2e_n"),
        "merged.p50_ms": Fig("cell.e2e_p50_us", lambda us: us / 1000),
        "merged.p99_ms": Fig("cell.e2e_p99_us", lambda us: us / 1000),
        "merged.p99_9_ms": Fig("cell.e2e_p999_us", lambda us: us / 1000),
        "merged.max_ms": Fig("rows", lambda rs: max(r["e2e_us"] for r in rs) / 1000),
        "workers_expected": Fig("cell.workers_expected"),
        "workers_reported": Fig("cell.workers_reported"),
        "complete": Fig("reasons", lambda codes: "worker_missing" not in codes),
    },
    "61": {
        "success": Fig("cell.ok"),
        "failed": Fig("cell.failed"),
        "e2e_p99_ms": Fig("cell.e2e_p99_us"),
        "error_rate": Fig("cell.error_rate"),
        "check_e2e_p99": Ours(
            "checks", "FAIL", "All requests failed, and failed ones count as over every limit: that is data",
            lambda c: c["e2e"].status,
        ),
        "overall": Fig("verdict.status", lower),
    },
    "62": {
        "checks": Ours(
            "verdict.checks", ["INCONCLUSIVE"] * 3,
            "A figure that is missing proves neither side: INCONCLUSIVE (exit code 98), never PASS",
            lambda cs: [c["status"] for c in cs if not c["implicit"]],
        ),
        "overall": Ours("verdict.status", "INCONCLUSIVE", "See checks", same),
        "json_output_has_no_NaN_literal": Fig("verdict", lambda v: "nan" not in str(v).lower().replace("nan_", "")),
    },
    "64": {
        "case_a_missing_file": Ours("alone.status", "INCONCLUSIVE", NO_ERROR_STATE),
        "case_b_no_common_key": Ours("disjoint.status", "INCONCLUSIVE", NO_ERROR_STATE),
        "exit_code_nonzero": Fig("codes", all),
        "compared": Fig("pairs"),
    },
    "65": {
        "ttft_delta_pct": Fig("", lambda s: 100 * (s["cand"]["ttft_p50_us"] / s["base"]["ttft_p50_us"] - 1)),
        "status": told("all_reasons", "implausible_values"),
        "overall": Fig("verdict.status", lambda s: "pass" if s == "PASS" else "not pass"),
    },
    "67": {
        "good": Fig("", lambda s: s["checks"]["goodput"].estimate * s["cell"]["sent"]),
        "sent": Fig("cell.sent"),
        "goodput_ratio": Fig("checks", lambda c: c["goodput"].estimate),
        "goodput_req_s": Fig("", lambda s: s["checks"]["goodput"].estimate * s["cell"]["sent_rate"]),
    },
    "68": {
        **{f"prompts_first_user_turn.{i}": Fig("loaded", lambda d, i=i: by_id(d)[i]) for i in "aceghj"},
        "system.e": Fig("loaded", lambda d: dict(zip(by_id(d), system(d), strict=True))["e"]),
        **{f"skipped.{i}": Fig("loaded", skipped(i)) for i in "bdfi"},
        "usable": Fig("loaded", lambda d: len(d.prompts)),
        "total": Fig("loaded", lambda d: len(d.prompts) + len(d.skipped)),
        "j_and_h_note": Words("Both are usable: `items` is read"),
    },
    "70": {
        "lines.json": Fig("lines_json", texts),
        "array.jsonl": Fig("array_jsonl", texts),
        "one.jsonl": Fig("one_jsonl", texts),
        "alternative": Words("Content decides, so no error is needed"),
    },
    "71": {
        "default": told("strict", "data.jsonl", "line 2", "UTF-8"),
        "if_skip_policy.records": Fig("loaded", lambda d: len(d.prompts)),
        "if_skip_policy.skipped": Fig("loaded", lambda d: len(d.skipped)),
        "if_skip_policy.skipped_lines": Fig("loaded", lambda d: [s.line for s in d.skipped]),
        "line_3_text": Fig("loaded", lambda d: texts(d)[1]),
    },
    "73": {
        "user_text": Fig("loaded", texts),
        "system": Fig("loaded", system),
        "batch_max_tokens_line6": Fig("loaded", lambda d: d.prompts[5].max_tokens),
        "invalid_lines": Fig("loaded", lambda d: [s.line for s in d.skipped]),
        "usable": Fig("loaded", lambda d: len(d.prompts)),
        "note": Words("Joined with an empty line between, as user_text says"),
    },
    "74": {
        "usable_ids": Fig("loaded", lambda d: ints([p.prompt_id for p in d.prompts])),
        **{f"first_prompts.{i}": Fig("loaded", lambda d, i=i: by_id(d)[i]) for i in "125"},
        **{
            f"turns.{i}": Fig("loaded", lambda d, i=i: {p.prompt_id: 1 + len(p.later_turns) for p in d.prompts}[i])
            for i in "125"
        },
        "skipped_ids": Fig("loaded", lambda d: ints([s.source_id for s in d.skipped])),
        "category_filter_math_ids": Fig("math", lambda d: ints([p.prompt_id for p in d.prompts])),
        "two_turn_policy": Words("docs/method.md, Policies: the first turn, or with turns = \"all\" the conversation"),
    },
    "76": {
        "records": Fig("loaded", lambda d: len(d.prompts)),
        "line_1": told("sent", "bad \ufffd end"),
        "line_2_text": Fig("sent", lambda sent: sent[1]),
        "crash_mid_run": Fig("rows", lambda rs: [r["outcome"] for r in rs] != ["ok", "ok"]),
    },
}  # fmt: skip
