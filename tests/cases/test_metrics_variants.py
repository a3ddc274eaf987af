"""Kinds of the cases about /metrics: other pages, engines, replicas, models, encodings, ends of a page."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cases import kit
from tests.cases.drivers import acceptance_slo, page
from tests.cases.kit import Page, Pages, Part, Reply, Run, Scrapers, row, timed_row

Scraped = Callable[..., Run]
NAMES = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
SUMS = ("ctr_spec_steps", "ctr_draft_tokens", "ctr_accepted_tokens")


@pytest.fixture
def scraped(scrapers: Scrapers, tmp_path: Path) -> Scraped:
    """(before, after) of each endpoint -> the merged run of one cell."""

    def run(*ends: tuple[Page, Page], rows: Any = (), **other: Reply) -> Run:
        pages = Pages(ends, {f"/{k.replace('__', '/')}": v for k, v in other.items()})
        return kit.run_of(tmp_path, Part(list(rows), pages=pages), scrapers=scrapers)

    return run


def spec(
    *engines: tuple[str, float, float, float], model: str = "m", suffix: str = "_total", types: bool = True
) -> str:
    """A page of (engine, drafts, draft tokens, accepted)."""
    lines = []
    for i, name in enumerate(NAMES):
        lines += [f"# TYPE vllm:spec_decode_{name} counter"] if types else []
        labels = [f'{{engine="{e[0]}",model_name="{model}"}} {e[1 + i]:g}' for e in engines]
        lines += [f"vllm:spec_decode_{name}{suffix}{label}" for label in labels]
    return "\n".join(lines) + "\n"


def sums(run: Run) -> list[float | None]:
    return [run.cell[name] for name in SUMS]


BEFORE, AFTER = spec(("0", 5, 20, 10)), spec(("0", 25, 80, 40))
GROWTH = [20, 60, 30]


def shuffled(text: str) -> str:
    lines = text.splitlines()
    return "\n".join([*lines[1::2], *lines[0::2]]) + "\n"


WRITINGS: dict[str, Callable[[str], Page]] = {
    "CRLF": lambda t: t.replace("\n", "\r\n"),
    "BOM": lambda t: b"\xef\xbb\xbf" + t.encode(),
    "no last line end": lambda t: t.rstrip("\n"),
    "no TYPE lines": lambda t: "\n".join(x for x in t.splitlines() if not x.startswith("#")),
    "TYPE lines behind": shuffled,
    "names without _total": lambda t: t.replace("_total{", "{"),
    "names without _total and TYPE": lambda t: "\n".join(
        x.replace("_total{", "{") for x in t.splitlines() if not x.startswith("#")
    ),
    "TYPE with _total": lambda t: "\n".join(
        x.replace(" counter", "_total counter") if x.startswith("#") else x for x in t.splitlines()
    ),
    "labels in another order, blanks, trailing comma": lambda t: t.replace(
        '{engine="0",model_name="m"}', '{ model_name = "m" , engine="0", }'
    ),
    "further labels": lambda t: t.replace('model_name="m"', 'model_name="m",pod="a\\"b,c}\\n",zone="é"'),
    "label values with line ends": lambda t: t.replace('model_name="m"', 'model_name="m\\nx\\\\n"'),
    "exponents": lambda t: t.replace("} 25", "} 2.5e+01").replace("} 80", "} +8E1"),
    "timestamps": lambda t: "\n".join(x if x.startswith("#") else f"{x} 1700000001250" for x in t.splitlines()),
    "exemplars and EOF": lambda t: Reply(
        "\n".join(x if x.startswith("#") else f'{x} # {{trace_id="a # b}} {{"}} 1 1.5' for x in t.splitlines())
        + "\n# EOF\n",
        headers={"Content-Type": "application/openmetrics-text; version=1.0.0; charset=utf-8"},
    ),
    "UNIT and HELP with odd words": lambda t: (
        "# UNIT vllm:x tokens\n# HELP vllm:x a \\n # TYPE {b}\n# a comment\n\n" + t
    ),
    "summaries and infinite buckets": lambda t: (
        t
        + "# TYPE vllm:s summary\n"
        + 'vllm:s{quantile="0.5"} NaN\nvllm:s_sum 1\nvllm:s_count 2\n'
        + "# TYPE vllm:h histogram\n"
        + 'vllm:h_bucket{le="+Inf"} 3\nvllm:h_sum +Inf\nvllm:h_count 3\n'
    ),
    "trailing garbage": lambda t: t + '<html>oops {{{ 12\nvllm:half{engine="0\n',
    "a byte that is no UTF-8": lambda t: t.encode() + b'other{a="\xff"} 1\n',
    "series twice with one value": lambda t: t + t,
    "gzip": lambda t: Reply(gzip.compress(t.encode()), headers={"Content-Encoding": "gzip"}),
    "gzip without the header": lambda t: Reply(gzip.compress(t.encode()), headers={"Content-Type": "text/plain"}),
    "deflate": lambda t: Reply(zlib.compress(t.encode()), headers={"Content-Encoding": "deflate"}),
    "quoted metric names": lambda t: "\n".join(
        x if x.startswith("#") else '{"' + x.replace("{", '",', 1) for x in t.splitlines()
    ),
}


@pytest.mark.parametrize("name", WRITINGS)
def test_the_writing_of_a_page_changes_no_sum(scraped: Scraped, name: str) -> None:
    write = WRITINGS[name]
    run = scraped((write(BEFORE), write(AFTER)))

    assert sums(run) == GROWTH
    assert run.cell["mean_acceptance_length"] == 2.5
    assert run.cell["ctr_schema"] == "v1"
    assert run.cell["edge_errors"] == []


def test_three_replicas_one_of_them_restarted(scraped: Scraped) -> None:
    """Equal labels on all three; the restarted one counts from zero and is named."""
    ends = [(spec(("0", 100, 400, 200)), spec(("0", new, 4 * new, 2 * new))) for new in (150, 130, 20)]
    run = scraped(*ends)

    assert sums(run) == [50 + 30 + 20, 400, 200]
    assert run.cell["ctr_engines"] == 3
    assert [r.endswith("engine=0") and "/2/metrics" in r for r in run.cell["counter_resets"]] == [True]
    assert run.judge(acceptance_slo()).status != "PASS"


def test_a_restart_that_only_the_creation_time_tells(scraped: Scraped) -> None:
    """The new process has already counted further than the old one."""
    created = 'vllm:spec_decode_num_drafts_created{{engine="0",model_name="m"}} {}\n'
    run = scraped((BEFORE + created.format(1.7e9), AFTER + created.format(1.8e9)))

    assert sums(run) == [25, 80, 40]
    assert len(run.cell["counter_resets"]) == 1


def test_an_engine_that_comes_in_the_window_counts_from_zero_and_is_named(scraped: Scraped) -> None:
    run = scraped((BEFORE, spec(("0", 25, 80, 40), ("1", 10, 40, 20))))

    assert sums(run) == [30, 100, 50]
    assert any("engine_added" in n and "engine=1" in n for n in run.cell["ctr_notes"])


def test_an_engine_that_goes_makes_the_sums_unknown(scraped: Scraped) -> None:
    run = scraped((spec(("0", 5, 20, 10), ("1", 1, 4, 2)), AFTER))

    assert sums(run) == [None] * 3
    assert any("series_vanished" in n for n in run.cell["ctr_notes"])


def test_a_counter_without_a_value_is_unknown_and_never_counted_from_zero(scraped: Scraped) -> None:
    """NaN at the start of the window: the growth is not the lifetime value."""
    run = scraped((BEFORE.replace(" 10", " NaN"), AFTER))

    assert sums(run) == [20, 60, None]
    assert run.cell["draft_acceptance_rate"] is None


def test_a_page_cut_in_mid_answer_does_not_turn_lifetime_values_into_growth(scraped: Scraped) -> None:
    """The first page ends inside the last counter's line: that counter was there, its value is not known."""
    cut = BEFORE[: BEFORE.rindex("accepted_tokens_total") + 8]
    run = scraped((cut, AFTER))

    assert sums(run) == [20, 60, None]


def test_a_series_twice_with_two_values_is_unknown(scraped: Scraped) -> None:
    run = scraped((BEFORE, AFTER + 'vllm:spec_decode_num_drafts_total{model_name="m",engine="0"} 99\n'))

    assert sums(run) == [None, 60, 30]


def test_positions_of_engines_with_different_k_are_summed_by_position(scraped: Scraped) -> None:
    def positions(engine: str, *values: int) -> str:
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        return "".join(f'{name}{{position="{i}",engine="{engine}"}} {v}\n' for i, v in enumerate(values))

    before = BEFORE + positions("0", 0, 0) + positions("1", 0, 0, 0, 0)
    run = scraped((before, AFTER + positions("1", 8, 4, 2, 1) + positions("0", 10, 5)))

    assert run.cell["ctr_accepted_per_pos"] == [18, 9, 2, 1]


def test_of_several_models_the_one_that_answered_counts(scraped: Scraped) -> None:
    other = (spec(("0", 7, 7, 7), model="other"), spec(("0", 1000, 5000, 900), model="other"))
    rows = [row(response_model="m")]
    run = scraped((BEFORE + other[0], AFTER + other[1]), rows=rows)

    assert sums(run) == GROWTH


def test_a_name_that_matches_no_series_of_several_is_said_and_nothing_is_summed(scraped: Scraped) -> None:
    other = (spec(("0", 7, 7, 7), model="other"), spec(("0", 9, 9, 9), model="other"))
    run = scraped((BEFORE + other[0], AFTER + other[1]), rows=[row(response_model="alias")])

    assert sums(run) == [None] * 3
    assert any("'alias'" in n and "'m', 'other'" in n for n in run.cell["ctr_notes"])


def test_an_alias_is_no_obstacle_where_there_is_one_model(scraped: Scraped) -> None:
    run = scraped((BEFORE, AFTER), rows=[row(response_model="alias")])

    assert sums(run) == GROWTH
    assert any("'alias'" in n for n in run.cell["ctr_notes"])


def test_v0_never_uses_its_gauges(scraped: Scraped) -> None:
    """The other way round too: gauges that fall, and only draft and accepted counters."""
    before, after = page("05", "metrics_before.txt"), page("05", "metrics_after.txt")
    run = scraped((before.replace(" 0.31", " 0.9").replace("_total{", "{"), after.replace("_total{", "{")))

    assert (run.cell["ctr_schema"], run.cell["ctr_draft_tokens"], run.cell["ctr_accepted_tokens"]) == ("v0", 100, 60)
    assert run.cell["draft_acceptance_rate"] == 0.6
    assert run.cell["mean_acceptance_length"] is None


BAD_PAGES: dict[str, tuple[Page, str]] = {
    "HTML with HTTP 200": (Reply("<html>login</html>", headers={"Content-Type": "text/html"}), "no metrics page"),
    "empty": (Reply(""), "no vllm:* series"),
    "JSON": (Reply('{"detail":"Not Found"}'), "no vllm:* series"),
    "404": (Reply('{"detail":"Not Found"}', 404), "HTTP 404"),
    "500": (Reply("Internal Server Error", 500), "HTTP 500"),
    "401": (Reply("", 401), "HTTP 401"),
    "another exporter": (Reply("node_load1 0.3\n"), "no vllm:* series"),
    "gzip that is none": (Reply(b"\x00\x01plain", headers={"Content-Encoding": "gzip"}), ""),
    "gzip cut short": (Reply(gzip.compress(AFTER.encode())[:-12], headers={"Content-Type": "text/plain"}), ""),
    "an unknown encoding": (Reply(b"\x0b\x02\x80", headers={"Content-Encoding": "br"}), ""),
    "redirect to another host": (Reply("", 302, {"Location": "http://example.invalid/metrics"}), "another host"),
    "redirect in a circle": (Reply("", 307, {"Location": "{server}/0/metrics"}), "redirects"),
    "redirect without a target": (Reply("", 307), "HTTP 307"),
    "length that is never reached": (Reply("vllm:x 1\n", headers={"Content-Length": "999"}), ""),
}


@pytest.mark.parametrize("name", BAD_PAGES)
def test_a_page_that_is_none_keeps_the_latencies_and_passes_no_gate(scraped: Scraped, name: str) -> None:
    bad, words = BAD_PAGES[name]
    rows = [timed_row(i, {"ok": True, "ttft_ms": 50, "e2e_ms": 100}) for i in range(3)]
    run = scraped((BEFORE, bad), rows=rows)

    assert sums(run) == [None] * 3
    assert run.cell["draft_acceptance_rate"] is None
    assert run.cell["e2e_p50_us"] == 100_000
    assert any(words in e and "window_end" in e for e in run.cell["edge_errors"]), run.cell["edge_errors"]
    (check,) = [c for c in run.judge(acceptance_slo()).checks if not c.implicit]
    assert check.status == "INCONCLUSIVE"
    assert words in check.reason


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_on_the_same_host_is_followed(scraped: Scraped, status: int) -> None:
    hop = Reply("", status, {"Location": "/engine/metrics"})
    run = scraped((hop, hop), engine__metrics=Reply(AFTER))

    assert sums(run) == [0, 0, 0]
    assert run.cell["edge_errors"] == []


def test_hit_rate_of_an_older_version_is_read_under_its_own_name(scraped: Scraped) -> None:
    """vLLM 0.8 called the prefix cache's counters gpu_prefix_cache_*."""
    text = 'vllm:gpu_prefix_cache_queries_total{{engine="0"}} {}\nvllm:gpu_prefix_cache_hits_total{{engine="0"}} {}\n'
    run = scraped((text.format(5000, 100), text.format(6000, 1000)))

    assert run.cell["prefix_cache_hit_rate"] == 0.9
