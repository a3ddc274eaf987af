"""Equality of greedy outputs against the noise between two baselines."""

from __future__ import annotations

import hashlib

import numpy as np

from loadtest.judge.lossless import Outputs, check_outputs
from tests.judge.runs import cell_facts, request_rows, run_of


def share(equal: int, n: int) -> np.ndarray:
    return np.arange(n) < equal


def test_all_equal_needs_no_noise() -> None:
    assert check_outputs(share(300, 300), share(0, 0), 0.95, 1).answer == "yes"


def test_differences_without_known_noise_prove_nothing() -> None:
    """80 % equal may be numerics: two baselines could differ as much."""
    found = check_outputs(share(400, 500), share(0, 0), 0.95, 1)
    assert found.answer == "not known"
    assert "second config without speculation" in found.evidence


def test_as_equal_as_two_baselines() -> None:
    assert check_outputs(share(1800, 2000), share(1800, 2000), 0.95, 1).answer == "yes"


def test_less_equal_than_two_baselines() -> None:
    found = check_outputs(share(1500, 2000), share(1800, 2000), 0.95, 1)
    assert found.answer == "no"
    assert "-15.0 points" in found.evidence


def test_few_prompts_are_not_enough() -> None:
    assert check_outputs(share(90, 100), share(90, 100), 0.95, 1).answer == "not known"
    assert check_outputs(share(0, 0), share(0, 0), 0.95, 1).answer == "not known"


def test_outputs_are_matched_by_the_text_sent() -> None:
    """Of 40 texts the candidate misses two (failed) and changes five; order differs."""
    one, two = cell_facts("baseline"), cell_facts("ngram-4")
    texts = [hashlib.sha256(bytes([i])).hexdigest() for i in range(40)]
    base = request_rows(one, 40, prompt_sha256=texts, output_sha256=texts)
    changed = ["f" * 64 if i < 5 else t for i, t in enumerate(texts)]
    outcomes = ["ok"] * 38 + ["http_error"] * 2
    cand = request_rows(two, 40, prompt_sha256=texts[::-1], output_sha256=changed[::-1], outcome=outcomes[::-1])
    data = run_of((one, base), (two, cand))
    found = Outputs(data, [one, two]).matches(one, two)
    assert (len(found), int(found.sum())) == (38, 33)


def test_sampled_cells_are_not_compared() -> None:
    one, two = cell_facts("baseline", temperature=0.7), cell_facts("ngram-4", temperature=0.7)
    data = run_of((one, request_rows(one, 30)), (two, request_rows(two, 30)))
    assert len(Outputs(data, [one, two]).matches(one, two)) == 0
