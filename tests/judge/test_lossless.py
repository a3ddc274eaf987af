"""Equality of greedy outputs against the noise between two baselines."""

from __future__ import annotations

import hashlib

import numpy as np

from loadtest.judge.lossless import Matches, Outputs, check_outputs
from tests.judge.runs import cell_facts, request_rows, run_of


def share(equal: int, n: int, texts_per_prompt: int = 1) -> Matches:
    """The first `equal` of n texts are equal; the texts of one prompt stand together."""
    return Matches(np.arange(n) < equal, np.arange(n) // texts_per_prompt)


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
    assert (len(found), int(found.equal.sum())) == (38, 33)


def test_sampled_cells_are_not_compared() -> None:
    one, two = cell_facts("baseline", temperature=0.7), cell_facts("ngram-4", temperature=0.7)
    data = run_of((one, request_rows(one, 30)), (two, request_rows(two, 30)))
    assert len(Outputs(data, [one, two]).matches(one, two)) == 0


def test_texts_of_one_prompt_are_no_independent_evidence() -> None:
    """1,000 texts of 20 prompts, the same nine in ten prompts equal on both sides: 20 prompts tell far too little."""
    assert check_outputs(share(1800, 2000), share(1800, 2000), 0.95, 1).answer == "yes"
    assert check_outputs(share(900, 1000, 50), share(900, 1000, 50), 0.95, 1).answer == "not known"
    nearly = share(990, 1000), share(990, 1000, 50)
    assert [check_outputs(m, share(0, 0), 0.95, 1).answer for m in nearly] == ["yes", "not known"]


def test_order_of_rows_does_not_choose_among_equal_texts() -> None:
    """The candidate answered one text twice, differently: the files' order must not decide which answer counts."""
    one, two = cell_facts("baseline"), cell_facts("ngram-4")
    base = request_rows(one, 2, prompt_sha256="t", output_sha256="a" * 64)
    found = []
    for outputs in (["a" * 64, "b" * 64], ["b" * 64, "a" * 64]):
        cand = request_rows(two, 2, prompt_sha256="t", output_sha256=outputs)
        found.append(Outputs(run_of((one, base), (two, cand)), [one, two]).matches(one, two).equal.tolist())
    assert found[0] == found[1]


def test_equal_shares_of_few_outputs_do_not_suffice() -> None:
    """299 equal outputs on both sides have no spread to resample: the number alone says that it is too little."""
    assert check_outputs(share(299, 299), share(299, 299), 0.95, 1).answer == "not known"
    assert check_outputs(share(300, 300), share(300, 300), 0.95, 1).answer == "yes"
