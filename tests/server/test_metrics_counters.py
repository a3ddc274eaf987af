"""Counter differences: per series first, summed last; resets, replicas, generations of servers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.server.counters import snapshot, subtract
from loadtest.server.metrics import parse_page
from loadtest.server.spec_counters import NO_VLLM_SERIES, histogram_bounds, positions_k, spec_delta, spec_families

METRICS = Path(__file__).parent.parent / "data" / "server" / "metrics"


def snap(failed=None, **files):
    return snapshot({e: parse_page((METRICS / f"{name}.txt").read_text()) for e, name in files.items()}, failed)


def snap_text(**texts):
    return snapshot({endpoint: parse_page(text) for endpoint, text in texts.items()})


def sums(spec):
    return spec.drafts, spec.draft_tokens, spec.accepted, spec.accepted_per_pos


def test_positions_of_two_engines_are_summed():
    before, after = snap(a="two-engines-before"), snap(a="two-engines-after")
    spec = spec_delta(subtract(before, after), after)
    assert sums(spec) == (30, 60, 39, (26, 13))
    assert (spec.engines, spec.complete, spec.notes) == (2, True, ())
    assert positions_k(after) == 2


def test_restart_of_one_engine_hidden_in_the_total_is_found_and_named():
    before, after = snap(a="engine-reset-before"), snap(a="engine-reset-after")
    spec = spec_delta(subtract(before, after), after)
    assert (spec.drafts, spec.draft_tokens, spec.accepted) == (1550, 4650, 3150)
    assert spec.resets == ("a engine=0",)
    assert not spec.complete
    assert "counter_reset: a engine=0" in spec.notes[0]


def test_a_reset_seen_only_by_created_still_counts_from_zero():
    page = 'vllm:x_total{{engine="0"}} {v}\nvllm:x_created{{engine="0"}} {c}\n'
    before, after = snap_text(a=page.format(v=10, c=100)), snap_text(a=page.format(v=30, c=200))
    deltas = subtract(before, after)
    assert deltas.total("vllm:x_total") == 30
    assert deltas.resets == ["a engine=0"]


def test_a_restart_resets_the_series_that_grew_past_their_old_value_too():
    before = snap_text(a='vllm:x_total{engine="0"} 10\nvllm:y_total{engine="0"} 1\nvllm:x_total{engine="1"} 5\n')
    after = snap_text(a='vllm:x_total{engine="0"} 4\nvllm:y_total{engine="0"} 9\nvllm:x_total{engine="1"} 6\n')
    deltas = subtract(before, after)
    assert deltas.total("vllm:y_total") == 9
    assert deltas.total("vllm:x_total") == 4 + 1


def test_a_new_process_start_time_resets_every_engine_of_the_endpoint():
    page = 'process_start_time_seconds {t}\nvllm:x_total{{engine="0"}} {v}\n'
    deltas = subtract(snap_text(a=page.format(t=1, v=3)), snap_text(a=page.format(t=2, v=5)))
    assert deltas.resets == ["a engine=*"]
    assert deltas.total("vllm:x_total") == 5


def test_replicas_with_equal_labels_do_not_overwrite_each_other():
    before = snap(a="replica-a-before", b="replica-b-before")
    after = snap(a="replica-a-after", b="replica-b-after")
    spec = spec_delta(subtract(before, after), after)
    assert sums(spec)[:3] == (100, 300, 120)
    assert (spec.endpoints, spec.engines) == (2, 2)


def test_a_replica_that_was_not_scraped_makes_the_sums_unknown_not_smaller():
    before = snap(a="replica-a-before", b="replica-b-before")
    after = snap(a="replica-a-after", failed={"b": "HTTP 500: Internal Server Error"})
    spec = spec_delta(subtract(before, after), after)
    assert (spec.drafts, spec.draft_tokens, spec.accepted) == (None, None, None)
    assert not spec.complete
    assert "b was not scraped at the end: HTTP 500: Internal Server Error" in spec.notes


def test_all_scrapes_failed_gives_null_not_zero():
    nothing = snapshot({}, {"a": "HTTP 500"})
    spec = spec_delta(subtract(nothing, nothing), nothing)
    assert (spec.schema, spec.drafts, spec.accepted, spec.complete) == ("absent", None, None, False)


def test_v0_servers_have_no_drafts_and_their_gauges_are_not_used():
    before, after = snap(a="v0-before"), snap(a="v0-after")
    spec = spec_delta(subtract(before, after), after)
    assert (spec.schema, spec.drafts, spec.draft_tokens, spec.accepted) == ("v0", None, 100, 60)
    assert (spec.emitted, spec.accepted_per_pos) == (70, None)


def test_a_router_page_gets_an_explicit_message():
    page = snap(a="router")
    (note,) = spec_delta(subtract(page, page), page).notes
    assert NO_VLLM_SERIES in note
    gateway = snap_text(gw='litellm_requests_metric_total{model="m"} 12\n')
    (note,) = spec_delta(subtract(gateway, gateway), gateway).notes
    assert note == f"gw: {NO_VLLM_SERIES}"


def test_a_baseline_engine_is_absent_without_blame():
    before, after = snap(a="baseline-metrics-before"), snap(a="baseline-metrics-after")
    spec = spec_delta(subtract(before, after), after)
    assert spec.schema == "absent"
    assert spec.notes == ("a: no spec series: the engine runs without speculative decoding",)
    assert (positions_k(after), spec_families(after)) == (None, [])


def test_the_label_of_another_served_name_is_followed_and_told():
    before, after = snap(a="replica-a-before"), snap(a="replica-a-after")
    spec = spec_delta(subtract(before, after), after, model="chat-small")
    assert spec.drafts == 40
    assert spec.notes == ("no speculation series has model_name='chat-small'; the series of 'm' are used",)


def test_a_filter_between_two_models_that_matches_none_sums_nothing_and_says_so():
    text = (METRICS / "replica-a-after.txt").read_text()
    both = snap_text(a=text + text.replace('"m"', '"n"'))
    spec = spec_delta(subtract(both, both), both, model="z")
    assert spec.drafts is None
    assert "'m', 'n': nothing summed" in spec.notes[0]
    assert spec_delta(subtract(both, both), both, model="n").drafts == 0


def test_a_vanished_series_is_unknown_and_a_new_one_counts_from_zero():
    before = snap_text(a='vllm:x_total{r="1"} 4\nvllm:y_total 1\n')
    after = snap_text(a='vllm:x_total{r="1"} 5\nvllm:x_total{r="2"} 3\n')
    deltas = subtract(before, after)
    assert deltas.total("vllm:x_total") == 1 + 3
    assert deltas.total("vllm:y_total") is None
    assert [k.metric for k in deltas.vanished] == ["vllm:y_total"]
    assert [k.labels for k in deltas.new] == [(("r", "2"),)]


def test_deltas_of_a_real_server():
    """The ngram probe run of a real 0.32 server: sums, positions and the identity of A with its positions."""
    before, after = snap(a="ngram-metrics-before"), snap(a="ngram-metrics-after")
    deltas = subtract(before, after)
    spec = spec_delta(deltas, after, model="gemma")
    assert sums(spec) == (129, 513, 353, (110, 96, 75, 72))
    assert sum(spec.accepted_per_pos) == spec.accepted
    assert deltas.total("vllm:generation_tokens_total") == 624
    assert deltas.total("vllm:time_to_first_token_seconds_count") == 16
    assert deltas.total("vllm:kv_cache_usage_perc") is None  # a gauge has no growth


def test_histogram_bounds_bracket_the_rank():
    edges = {"0.1": (0, 2), "0.5": (0, 9), "+Inf": (0, 10)}
    pages = [
        "# TYPE vllm:t histogram\n"
        + "".join(f'vllm:t_bucket{{engine="{e}",le="{le}"}} {v[i]}\n' for le, v in edges.items() for e in "01")
        for i in (0, 1)
    ]
    deltas = subtract(snap_text(a=pages[0]), snap_text(a=pages[1]))
    assert histogram_bounds(deltas, "vllm:t", 0.2) == (0.0, 0.1)
    assert histogram_bounds(deltas, "vllm:t", 0.21) == (0.1, 0.5)
    assert histogram_bounds(deltas, "vllm:t", 0.9) == (0.1, 0.5)
    assert histogram_bounds(deltas, "vllm:t", 0.99) == (0.5, None)
    assert histogram_bounds(deltas, "vllm:absent", 0.5) is None
    same = subtract(snap_text(a=pages[1]), snap_text(a=pages[1]))
    assert histogram_bounds(same, "vllm:t", 0.5) is None


def test_histograms_with_other_buckets_are_summed_at_the_common_edges():
    page = "# TYPE vllm:t histogram\n" + "".join(
        f'vllm:t_bucket{{engine="{e}",le="{le}"}} {v}\n'
        for e, le, v in [("0", "1", 4), ("0", "2", 4), ("0", "+Inf", 4), ("1", "2", 1), ("1", "+Inf", 4)]
    )
    empty = page.replace("} 4", "} 0").replace("} 1\n", "} 0\n")
    deltas = subtract(snap_text(a=empty), snap_text(a=page))
    assert histogram_bounds(deltas, "vllm:t", 0.5) == (0.0, 2.0)


@pytest.fixture(scope="module")
def ngram_pages():
    return [(METRICS / f"ngram-metrics-{edge}.txt").read_text() for edge in ("before", "after")]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_order_of_series_gives_the_same_deltas(ngram_pages, seed):
    rng = random.Random(seed)
    before, after = (snap_text(a=text) for text in ngram_pages)
    shuffled = []
    for text in ngram_pages:
        lines = text.splitlines()
        types = [line for line in lines if line.startswith("#")]
        rest = [line for line in lines if not line.startswith("#")]
        rng.shuffle(rest)
        shuffled.append(snap_text(a="\n".join(types + rest)))
    assert subtract(*shuffled).series == subtract(before, after).series


@settings(max_examples=60, deadline=None)
@given(data=st.data(), with_created=st.booleans())
def test_a_sum_is_exact_without_a_restart_and_a_flagged_lower_bound_with_one(data, with_created):
    """Three engines count up; each may restart once, anywhere in the window."""
    true_total, restarted, pages = 0, set(), ([], [])
    for engine in "012":
        base, before_restart, after_restart = (data.draw(st.integers(0, 50)) for _ in range(3))
        restarts = data.draw(st.booleans())
        true_total += before_restart + after_restart
        final = after_restart if restarts else base + before_restart + after_restart
        born = 1, 2 if restarts else 1
        seen = with_created or final < base
        restarted |= {engine} if restarts and seen else set()
        for page, value, created in zip(pages, (base, final), born, strict=True):
            page.append(f'vllm:x_total{{engine="{engine}"}} {value}\n')
            if with_created:
                page.append(f'vllm:x_created{{engine="{engine}"}} {created}\n')
    deltas = subtract(*(snap_text(a="".join(page)) for page in pages))
    assert deltas.total("vllm:x_total") <= true_total
    assert deltas.resets == [f"a engine={e}" for e in sorted(restarted)]
    if with_created and not restarted:
        assert deltas.total("vllm:x_total") == true_total
