"""The parser of /metrics pages against prometheus_client and against the corners of both text formats."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from loadtest.server.metrics import families, parse, parse_page

METRICS = Path(__file__).parent.parent / "data" / "server" / "metrics"
CAPTURES = sorted(p.name for p in METRICS.glob("*-metrics-*.txt"))


def as_set(samples):
    return sorted((s.name, tuple(sorted(s.labels.items())), float(s.value)) for s in samples)


@pytest.mark.parametrize("name", CAPTURES)
def test_captures_of_real_servers_equal_prometheus_client(name):
    text = (METRICS / name).read_text()
    theirs = [s for family in text_string_to_metric_families(text) for s in family.samples]
    page = parse_page(text, "text/plain; version=0.0.4")
    assert as_set([*page.samples, *page.created]) == as_set(theirs)
    assert (page.broken_lines, page.duplicates) == (0, 0)
    assert len(theirs) > 400


@pytest.mark.parametrize("name", CAPTURES)
def test_kinds_of_captures_equal_the_type_lines(name):
    text = (METRICS / name).read_text()
    theirs = {s.name: f.type for f in text_string_to_metric_families(text) for s in f.samples}
    for sample in parse(text):
        expected = "info" if sample.name.endswith("_info") else theirs[sample.name]
        assert sample.kind == expected, sample.name


def test_openmetrics_page_equals_prometheus_client():
    text = (METRICS / "openmetrics.txt").read_text()
    theirs = [s for family in openmetrics_families(text) for s in family.samples]
    page = parse_page(text)
    ours = [*page.samples, *page.created]
    assert [s.name for s in ours if math.isnan(s.value)] == ["vllm:kv_cache_usage_perc"]
    assert as_set(s for s in ours if not math.isnan(s.value)) == as_set(s for s in theirs if not math.isnan(s.value))
    drafts = next(s for s in page.samples if s.name == "vllm:spec_decode_num_drafts_total")
    assert (drafts.value, drafts.timestamp_s, drafts.kind) == (1200.0, 1700000001.25, "counter")
    assert [s.value for s in page.samples if s.name.endswith("_seconds_sum")] == [math.inf]
    assert page.openmetrics


def test_text_timestamps_are_milliseconds():
    assert parse("vllm:x 1 1700000001250\n")[0].timestamp_s == 1700000001.25


def test_label_values_may_hold_commas_braces_quotes_and_backslashes():
    samples = parse((METRICS / "escapes.txt").read_bytes())
    assert {s.labels["model_name"] for s in samples} == {'a,b}"c\\d'}
    positions = {s.labels["position"]: s.value for s in samples if "position" in s.labels}
    assert positions == {"0": 7.0, "1": 3.0}


def test_a_broken_line_is_named_and_hides_no_other():
    good = 'vllm:a{x="1"} 5\nvllm:b{x="1" 6\nvllm:c{x="1"} 7\n'
    text = good + "vllm:d 1_000\nvllm:e 0x10\nvllm:f\nvllm:g 1 2 3\nvllm:h{x} 1\n"
    page = parse_page(text)
    assert {s.name: s.value for s in page.samples} == {"vllm:a": 5.0, "vllm:c": 7.0}
    assert page.broken_lines == 6
    assert page.broken[0].startswith("line 2: labels cannot be read")
    assert "'1_000'" in page.broken[1]


def test_an_html_page_has_no_samples_but_a_reason():
    page = parse_page("<!doctype html>\n<html><body>\n" + "<p>not found</p>\n" * 100)
    assert page.samples == []
    assert page.vllm_series == 0
    assert page.broken_lines == 102
    assert len(page.broken) == 20


def test_declared_openmetrics_without_eof_was_cut_short():
    page = parse_page("vllm:a 1\n", "application/openmetrics-text; version=1.0.0")
    assert "cut short" in page.broken[0]


def test_bytes_that_are_not_utf8_and_duplicates_are_told():
    page = parse_page(b'vllm:a{x="\xff"} 1\nvllm:b 1\nvllm:b 2\n')
    assert page.broken == ["byte 10 is not UTF-8 (0xff)"]
    assert page.duplicates == 1
    assert len(page.samples) == 3


def test_created_samples_stand_apart():
    page = parse_page((METRICS / "ngram-metrics-after.txt").read_text())
    assert page.created
    assert not any(s.name.endswith("_created") for s in page.samples)


def test_families_fold_histogram_samples_and_keep_counters():
    names = families(parse((METRICS / "ngram-metrics-after.txt").read_text()))
    assert {"vllm:time_to_first_token_seconds", "vllm:spec_decode_num_drafts_total"} <= names
    assert not any(n.endswith("_bucket") for n in names)


def test_quoted_metric_names_of_the_utf8_format():
    (sample,) = parse('{"vllm:odd name", engine="0"} 3\n')
    assert (sample.name, sample.labels, sample.value) == ("vllm:odd name", {"engine": "0"}, 3.0)


LABEL_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x85\u2028\u2029"), max_size=12)
BLANK = st.sampled_from(["", " ", "\t", "  "])


@given(
    labels=st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True), LABEL_TEXT, max_size=4),
    value=st.floats(),
    blanks=st.lists(BLANK, min_size=12, max_size=12),
    trailing=st.booleans(),
)
def test_what_is_written_is_read_back(labels, value, blanks, trailing):
    """Any label text, order, blanks and trailing comma."""
    blank = iter(blanks)
    terms = []
    for key, text in labels.items():
        escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
        terms.append(f'{next(blank)}{key}{next(blank)}={next(blank)}"{escaped}"')
    line = "vllm:m{" + ",".join(terms) + ("," if trailing and terms else "") + " } " + repr(value) + "\n"
    (sample,) = parse(line)
    assert dict(sample.labels) == labels
    assert sample.value == value or (math.isnan(sample.value) and math.isnan(value))


@given(st.binary(max_size=300))
def test_any_bytes_give_a_page(raw):
    page = parse_page(raw)
    assert page.broken_lines >= len(page.broken)
