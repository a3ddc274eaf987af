"""What must hold for any input, each with at least 1,000 examples."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadtest.errors import DatasetError
from loadtest.load import hdr
from loadtest.merge import acceptance as acc
from loadtest.merge.cells import counter_counts
from loadtest.merge.quantiles import QUANTILES, ExactQuantiles
from loadtest.plan.datasets import load_dataset
from loadtest.server.counters import Snapshot, subtract
from loadtest.server.metrics import parse_page
from loadtest.server.spec_counters import spec_delta

PROPERTY = settings(
    max_examples=1000,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

# -- counters: pages of a server whose counts are known

LABEL = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=6)


@st.composite
def engines(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Engines with histograms H_0..H_K of accepted drafts per step, before and in the window; drafts of full length."""
    k = draw(st.integers(1, 4))
    hist = st.lists(st.integers(0, 500), min_size=k + 1, max_size=k + 1)
    count = draw(st.integers(1, 3))
    return [{"engine": str(i), "old": draw(hist), "new": draw(hist)} for i in range(count)]


def lines_of(engine: dict[str, Any], hist: list[int], model: str, born: bool) -> list[str]:
    """The sample lines of one engine, each as a server might write it."""
    escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    base = [f'engine="{engine["engine"]}"', f'model_name="{escaped}"']
    k = len(hist) - 1
    steps, accepted = sum(hist), sum(j * h for j, h in enumerate(hist))
    values = {"num_drafts": steps, "num_draft_tokens": steps * k, "num_accepted_tokens": accepted}
    out = [f"vllm:spec_decode_{n}_total{{{','.join(base)}}} {v}" for n, v in values.items()]
    for i in range(k):
        labels = ", ".join([f'position="{i}"', *reversed(base)])
        out.append(f"vllm:spec_decode_num_accepted_tokens_per_pos_total{{ {labels}, }} {sum(hist[i + 1 :])}.0")
    if born:
        out.append(f"vllm:spec_decode_num_drafts_created{{{','.join(base)}}} 1.7e+09")
    return out


def snapshot_of(lines: list[str]) -> Snapshot:
    snap = Snapshot()
    snap.add_page("http://h/metrics", parse_page("\n".join(lines) + "\n"))
    return snap


@PROPERTY
@given(found=engines(), model=LABEL, born=st.booleans(), data=st.data())
def test_any_order_of_series_gives_the_same_deltas_and_any_counters_keep_the_identities(
    found: list[dict[str, Any]], model: str, born: bool, data: st.DataObject
) -> None:
    before = [line for e in found for line in lines_of(e, e["old"], model, born)]
    total = [[a + b for a, b in zip(e["old"], e["new"], strict=True)] for e in found]
    after = [line for e, hist in zip(found, total, strict=True) for line in lines_of(e, hist, model, born)]
    deltas = subtract(snapshot_of(before), snapshot_of(after))
    shuffled = subtract(snapshot_of(data.draw(st.permutations(before))), snapshot_of(data.draw(st.permutations(after))))

    assert shuffled.series == deltas.series
    assert deltas.resets == []

    delta = spec_delta(shuffled, snapshot_of(after), model)
    grown = [sum(column) for column in zip(*(e["new"] for e in found), strict=True)]
    steps, accepted = sum(grown), sum(j * h for j, h in enumerate(grown))
    assert (delta.drafts, delta.accepted) == (steps, accepted)
    counts = counter_counts(delta, float(steps + accepted + 7))
    assert acc.identity_breaches(counts) == []
    figures = acc.figures(counts)
    if not steps:
        assert figures.draft_acceptance_rate is None
        assert figures.mean_acceptance_length is None
        return
    assert figures.mean_acceptance_length is not None
    assert figures.position_survival is not None
    assert figures.acceptance_histogram == tuple(grown)
    assert 0 <= (figures.draft_acceptance_rate or 0) <= 1
    assert math.isclose(1 + sum(p or 0 for p in figures.position_survival), figures.mean_acceptance_length)
    assert 1 <= figures.mean_acceptance_length <= len(grown)
    assert 0 <= (figures.coverage or 0) <= 1
    assert all(0 <= c <= 1 for c in figures.conditional_acceptance or () if c is not None)


@PROPERTY
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.booleans()), min_size=1, max_size=4),
    st.booleans(),
)
def test_a_sum_is_exact_or_says_that_it_is_not(engines_seen: list[tuple[int, int, bool]], created: bool) -> None:
    """Each engine counts from `old` on; one that restarts begins at zero. Never more than what really happened."""
    before, after, true = [], [], 0
    for i, (old, grown, restarts) in enumerate(engines_seen):
        before.append(f'vllm:generation_tokens_total{{engine="{i}"}} {old}')
        after.append(f'vllm:generation_tokens_total{{engine="{i}"}} {grown if restarts else old + grown}')
        true += grown
        if created:
            before.append(f'vllm:generation_tokens_created{{engine="{i}"}} 1')
            after.append(f'vllm:generation_tokens_created{{engine="{i}"}} {2 if restarts else 1}')
    deltas = subtract(snapshot_of(before), snapshot_of(after))
    total = deltas.total("vllm:generation_tokens_total")
    assert total is not None
    assert total <= true
    if created:
        assert total == true
        assert len(deltas.resets) == sum(restarts for _, _, restarts in engines_seen)
    elif total != true:
        # Without creation times a restart that outgrew its old value cannot be seen in two scrapes.
        assert any(restarts and grown >= old for old, grown, restarts in engines_seen)


@PROPERTY
@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_page_is_read_or_its_lines_are_named(raw: str | bytes) -> None:
    page = parse_page(raw)
    assert page.broken_lines >= len(page.broken)
    snap = Snapshot()
    snap.add_page("e", page)
    assert all(math.isfinite(v) for v in snap.values.values())
    assert subtract(snap, snap).total("vllm:generation_tokens_total") in (None, 0)


# -- percentiles and histograms

MICROSECONDS = st.lists(st.integers(0, hdr.HIGHEST_US), min_size=1, max_size=60)


@PROPERTY
@given(st.lists(st.floats(0, 1e12, allow_subnormal=False), min_size=1, max_size=200))
def test_percentiles_lie_between_minimum_and_maximum_and_are_values_that_were_put_in(values: list[float]) -> None:
    held = ExactQuantiles()
    for start in range(0, len(values), 50):
        held.add(np.array(values[start : start + 50]))
    found = held.quantiles([*QUANTILES.values(), 1.0])
    held.close()
    assert all(v in values for v in found)
    assert found == sorted(x for x in found if x is not None)
    assert found[-1] == max(values)
    assert min(values) <= (found[0] or 0.0) <= max(values)


@PROPERTY
@given(st.lists(MICROSECONDS, min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_merging_histograms_is_associative_commutative_and_exact(parts: list[list[int]], rng: Any) -> None:
    def histogram(values: list[int]) -> Any:
        made = hdr.new_histogram()
        assert hdr.record(made, values) == 0
        return made

    whole = histogram(list(itertools.chain(*parts)))
    left = hdr.new_histogram()
    for part in parts:
        hdr.merge(left, histogram(part))
    order = list(parts)
    rng.shuffle(order)
    right = histogram(order[-1])
    for part in order[:-1]:
        hdr.merge(right, histogram(part))
    ranks = [0, 50, 90, 99, 99.9, 100]
    for merged in (left, right):
        assert bytes(merged.counts) == bytes(whole.counts)
        assert (merged.total_count, merged.min_value, merged.max_value) == (
            whole.total_count,
            whole.min_value,
            whole.max_value,
        )
        assert hdr.percentiles(merged, ranks) == hdr.percentiles(whole, ranks)
    low, high = min(map(min, parts)), max(map(max, parts))
    assert all(v is not None and low <= v <= high * 1.001 + 1 for v in hdr.percentiles(whole, ranks))


# -- data sets

KEYS = [
    *("prompt", "messages", "conversations", "conversation", "items", "turns", "instruction", "input", "question"),
    *("text", "body", "role", "from", "value", "content", "type", "id", "max_tokens", "category", "tests", "test_list"),
]
WORDS = st.sampled_from(["user", "human", "gpt", "assistant", "system", "tool", "text", "image_url", "x", "", "\ud83d"])
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), WORDS, st.text(max_size=6)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=10,
)
MESSAGE = st.fixed_dictionaries({"role": WORDS, "content": VALUES}) | st.fixed_dictionaries(
    {"from": WORDS, "value": VALUES}
)
ROWS = st.one_of(
    VALUES,
    st.fixed_dictionaries({"prompt": st.text(min_size=1, max_size=8)}),
    st.builds(
        lambda key, turns: {key: turns},
        st.sampled_from(["messages", "conversations", "prompt", "items"]),
        st.lists(MESSAGE, max_size=4),
    ),
)
END = st.sampled_from(["\n", "\r\n", "\r", "\n\n"])


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Rows in some container, then perhaps damaged."""
    rows = draw(st.lists(ROWS, max_size=4))
    dumped = [json.dumps(r, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1]))) for r in rows]
    text = "[" + ",\n".join(dumped) + "]" if draw(st.booleans()) else draw(END).join(dumped)
    data = text.encode("utf-8", "surrogatepass")
    if draw(st.booleans()):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=3)) + data[at + draw(st.integers(0, 3)) :]
    container = draw(st.sampled_from(["", "", "bom", "gzip", "utf-16"]))
    if container == "gzip":
        return gzip.compress(data)
    if container == "utf-16":
        return text.encode("utf-16", "surrogatepass")
    return b"\xef\xbb\xbf" + data if container else data


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@PROPERTY
@given(data=files() | st.binary(max_size=120))
def test_any_file_gives_prompts_or_an_error_that_names_file_and_line(
    tmp_path: Path, on_error: Any, data: bytes
) -> None:
    path = tmp_path / "any.jsonl"
    path.write_bytes(data)
    told = ""
    try:
        dataset = load_dataset(path, on_error=on_error)
    except DatasetError as error:
        told = str(error)
    if told:
        assert told.startswith(f"{path}: line ")
        return
    assert dataset.prompts
    for prompt in dataset.prompts:
        assert prompt.messages[-1].role == "user"
        assert prompt.messages[-1].content.strip()
        assert "".join(m.content for m in prompt.messages).encode()
    assert on_error == "skip" or not dataset.skipped
