"""Over HTTP: what the answers say about speculation adds up to the server's counters, exactly."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadtest.server.sim.process import SimProcess, simulated_server

PROMPTS = (
    "Write a python function that sorts a list. Task {k}.",
    "Rename the variable in this file.\ndef f(x):\n    y = x\n    y += 1\n    y *= 2\n    return y\n# {k}",
    "Why do trains run late? Question {k}.",
    "请解释延迟和吞吐量的关系。问题{k}。",
)


async def answers(server: SimProcess, count: int, concurrency: int, **extra: Any) -> list[list[dict[str, Any]]]:
    """The events of `count` streamed chats, `concurrency` at a time."""
    gate = asyncio.Semaphore(concurrency)

    async def one(session: aiohttp.ClientSession, k: int) -> list[dict[str, Any]]:
        body = {
            "messages": [{"role": "user", "content": PROMPTS[k % 4].format(k=k)}],
            "max_tokens": 20 + 7 * (k % 9),
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            **extra,
        }
        async with gate, session.post(f"{server.url}/v1/chat/completions", json=body) as response:
            text = await response.text()
        lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]

    async with aiohttp.ClientSession() as session:
        return await asyncio.gather(*(one(session, k) for k in range(count)))


async def counters(server: SimProcess) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/metrics") as response:
        text = await response.text()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            position = sample.labels.get("position", "")
            if sample.name.endswith(("_total", "_latency_seconds_count")):
                found[sample.name.removeprefix("vllm:") + position] = sample.value
    return found


@pytest.mark.parametrize(
    ("method", "temperature"),
    [("ngram", 0.0), ("suffix", 0.0), ("draft_model", 0.8), ("eagle", 0.0), ("eagle3", 0.8), ("suffix", 0.8)],
)
def test_sums_over_requests_equal_the_counters(method: str, temperature: float) -> None:
    """ΣS, ΣD, ΣA, the histogram by position and Σ completion tokens, at concurrency 8, some answers stopping early."""

    async def scenario(server: SimProcess) -> tuple[list[list[dict[str, Any]]], dict[str, float]]:
        # Two rounds: the second one finds what suffix decoding has learned from the first.
        first = await answers(server, 24, 8, temperature=temperature)
        second = await answers(server, 24, 8, temperature=temperature)
        return first + second, await counters(server)

    with simulated_server(method=method, speed=10) as server:
        streams, counted = asyncio.run(scenario(server))
    blocks = [stream[-1]["metrics"]["speculative_decoding"] for stream in streams]
    assert len(blocks) == 48
    assert sum(b["num_spec_steps"] for b in blocks) == counted["spec_decode_num_drafts_total"] > 0
    assert sum(b["num_draft_tokens"] for b in blocks) == counted["spec_decode_num_draft_tokens_total"]
    assert sum(b["num_accepted_draft_tokens"] for b in blocks) == counted["spec_decode_num_accepted_tokens_total"] > 0
    gamma = blocks[0]["num_spec_tokens"]
    for position in range(gamma):
        beyond = sum(sum(b["acceptance_histogram"][position + 1 :]) for b in blocks)
        assert beyond == counted[f"spec_decode_num_accepted_tokens_per_pos_total{position}"]
    tokens = sum(s[-1]["usage"]["completion_tokens"] for s in streams)
    assert tokens == counted["generation_tokens_total"]
    # N = first tokens + decode steps + accepted - overrun; the server has one inter-token gap per decode step.
    overrun = (
        48 + counted["inter_token_latency_seconds_count"] + counted["spec_decode_num_accepted_tokens_total"] - tokens
    )
    assert 0 <= overrun <= 48 * gamma
    for stream in streams:
        check_lists(stream)
    assert sum(s[-1]["usage"]["prompt_tokens"] for s in streams) == counted["prompt_tokens_total"]


def check_lists(stream: list[dict[str, Any]]) -> None:
    """The per-step lists, the histogram and the sums of one answer agree, and usage only grows."""
    usage, block = stream[-1]["usage"], stream[-1]["metrics"]["speculative_decoding"]
    accepted, drafted = block.get("per_step_accepted", []), block.get("per_step_drafted", [])
    assert len(accepted) == len(drafted) == block["num_spec_steps"] == sum(block["acceptance_histogram"])
    assert sum(accepted) == block["num_accepted_draft_tokens"]
    assert sum(drafted) == block["num_draft_tokens"]
    assert all(0 <= a <= d <= block["num_spec_tokens"] for a, d in zip(accepted, drafted, strict=True))
    totals = [e["usage"]["completion_tokens"] for e in stream[:-1]]
    assert totals == sorted(totals)
    assert totals[-1] == usage["completion_tokens"]


def test_chunks_and_steps_agree_in_each_request() -> None:
    """N = 1 + undrafted steps + Σ(accepted + 1) − overrun, with the overrun only where the last step was cut."""

    with simulated_server(method="eagle3", speed=10) as server:
        streams = asyncio.run(answers(server, 24, 8, temperature=0))
    overran = 0
    for stream in streams:
        block = stream[-1]["metrics"]["speculative_decoding"]
        assert set(block["per_step_drafted"]) == {4}  # always gamma
        accepted = block["per_step_accepted"]
        overrun = 1 + sum(a + 1 for a in accepted) - stream[-1]["usage"]["completion_tokens"]
        assert 0 <= overrun <= accepted[-1]
        overran += overrun > 0
        check_lists(stream)
    assert overran > 0


def test_ngram_mostly_has_no_candidate_and_suffix_drafts_vary() -> None:
    """Steps without a draft are in no counter; suffix decoding drafts between 1 and gamma tokens, and learns."""
    with simulated_server(method="ngram", speed=10) as server:
        streams = asyncio.run(answers(server, 24, 8, temperature=0, ignore_eos=True))
    tokens = sum(s[-1]["usage"]["completion_tokens"] for s in streams)
    blocks = [s[-1]["metrics"]["speculative_decoding"] for s in streams]
    steps, accepted = (sum(b[key] for b in blocks) for key in ("num_spec_steps", "num_accepted_draft_tokens"))
    assert 0 < steps + accepted < 0.7 * tokens
    with simulated_server(method="suffix", speed=10) as server:
        cold = asyncio.run(answers(server, 24, 8, temperature=0, ignore_eos=True))
        warm = asyncio.run(answers(server, 24, 8, temperature=0, ignore_eos=True))
    lengths = {d for s in cold for d in s[-1]["metrics"]["speculative_decoding"].get("per_step_drafted", [])}
    assert lengths >= {1, 2, 3, 8}

    def coverage(streams: list[list[dict[str, Any]]]) -> float:
        blocks = [s[-1]["metrics"]["speculative_decoding"] for s in streams]
        drafted = sum(b["num_spec_steps"] + b["num_accepted_draft_tokens"] for b in blocks)
        return float(drafted / sum(s[-1]["usage"]["completion_tokens"] for s in streams))

    assert coverage(warm) > coverage(cold) + 0.2
    assert [s[-1]["usage"] | {"prompt_tokens_details": None} for s in warm] == [
        s[-1]["usage"] | {"prompt_tokens_details": None} for s in cold
    ]
