"""Where speculation pays and where it loses, in model time; and that real time follows the model."""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path

import pytest

from loadtest.server.sim.parameters import Method, Parameters, Stratum
from loadtest.server.sim.process import simulated_server
from loadtest.server.sim.throughput import table, tokens_per_second


@pytest.fixture(scope="module")
def ratio() -> object:
    cache: dict[tuple[str, int, str], float] = {}

    def speed(method: Method, concurrency: int, stratum: Stratum) -> float:
        key = (method, concurrency, stratum)
        if key not in cache:
            cache[key] = tokens_per_second(method, concurrency, stratum, window_s=2.0)
        return cache[key]

    def compare(method: Method, concurrency: int, stratum: Stratum) -> float:
        return speed(method, concurrency, stratum) / speed("none", concurrency, stratum)

    return compare


def test_a_draft_model_pays_alone_and_loses_in_a_batch(ratio) -> None:  # type: ignore[no-untyped-def]
    """Draft model: well over 1 at one stream, about even at 8, well under 1 at 32."""
    assert ratio("draft_model", 1, "code") > 1.5
    assert ratio("draft_model", 1, "chat") > 1.3
    assert 0.8 < (ratio("draft_model", 8, "code") + ratio("draft_model", 8, "chat")) / 2 < 1.25
    assert ratio("draft_model", 32, "code") < 0.75
    assert ratio("draft_model", 32, "chat") < 0.7


def test_ngram_pays_only_where_there_is_something_to_copy(ratio) -> None:  # type: ignore[no-untyped-def]
    """N-gram wins on edits at low load, loses on chat everywhere and on edits in a large batch."""
    assert ratio("ngram", 1, "edit") > 1.2
    assert ratio("ngram", 1, "chat") < 0.95
    assert ratio("ngram", 32, "edit") < 1.0
    assert ratio("ngram", 32, "chat") < 0.8


def test_eagle3_holds_out_longest(ratio) -> None:  # type: ignore[no-untyped-def]
    """EAGLE-3 is above the draft model at 8 and 32, and loses at 128."""
    for concurrency in (8, 32):
        assert ratio("eagle3", concurrency, "code") > ratio("draft_model", concurrency, "code") + 0.3
    assert ratio("eagle3", 128, "code") < 0.8


def test_more_drafts_cost_more_and_help_less() -> None:
    """At 32 streams a draft model with gamma 8 is slower than with gamma 2."""
    slow, fast = (tokens_per_second("draft_model", 32, "chat", gamma=g, window_s=2.0) for g in (8, 2))
    assert slow < 0.8 * fast


def test_the_documented_table_is_what_comes_out() -> None:
    """docs/simulator.md has the table that `python -m loadtest.server.sim.throughput` prints."""
    docs = Path(__file__).parents[2] / "docs" / "simulator.md"
    assert table() in docs.read_text("utf-8")


def test_real_time_follows_model_time() -> None:
    """A lone stream takes its modelled time: the schedule is absolute, so late wake-ups don't add up."""
    with simulated_server() as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        body = json.dumps({"prompt": "count", "max_tokens": 200, "ignore_eos": True, "temperature": 0})
        connection.request("POST", "/v1/completions", body)
        started = time.monotonic()
        timing = json.loads(connection.getresponse().read())["metrics"]
        elapsed_s = time.monotonic() - started
        connection.close()
    p = Parameters()
    model_s = 199 * (p.base_step_ms + p.per_seq_ms) / 1000
    # One-sided margins for a busy machine; being early would be an error of the schedule.
    assert model_s * 0.97 < timing["generation_time_ms"] / 1000 < model_s + 1.0
    assert model_s * 0.97 < elapsed_s < model_s + 1.5
    assert timing["mean_itl_ms"] == pytest.approx(timing["generation_time_ms"] / 199)


def test_speed_divides_every_duration() -> None:
    """--speed 4 makes the same answer take a quarter of the time, give or take the timer."""
    times = []
    for speed in (1, 4):
        with simulated_server(speed=speed) as server:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
            body = json.dumps({"prompt": "count", "max_tokens": 150, "ignore_eos": True, "temperature": 0})
            connection.request("POST", "/v1/completions", body)
            times.append(json.loads(connection.getresponse().read())["metrics"]["generation_time_ms"])
            connection.close()
    assert times[1] < 0.6 * times[0]
