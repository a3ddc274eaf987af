"""When two cells may be compared, and reasons about a run as a whole; part of docs/inconclusive.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from loadtest.judge.facts import Facts, value
from loadtest.judge.verdict import Reason

HIT_RATE_GAP = 0.05  # prefill of 5 % of the prompts saved is visible in TTFT
LENGTH_BAND = (0.95, 1.05)  # the guard of MLPerf, halved: lengths go straight into E2E


@dataclass(frozen=True, slots=True)
class PairCheck:
    """A condition under which two cells may not be compared."""

    code: str
    limit: str
    why: str
    do: str
    seen: Callable[[Facts, Facts], str | None]
    """(baseline, candidate) -> what was seen."""
    blocking: bool = True

    def run(self, baseline: Facts, candidate: Facts) -> Reason | None:
        """The reason, or None where all is well."""
        seen = self.seen(baseline, candidate)
        return None if seen is None else Reason(self.code, seen, self.limit, self.why, self.do, self.blocking)


def hit_rate(facts: Facts) -> float | None:
    """Prefix cache hits over queries of the window; 0 where nothing was asked, None where it is not known."""
    queries, hits = value(facts, "prefix_cache_queries"), value(facts, "prefix_cache_hits")
    if queries is None or hits is None:
        return None
    return hits / queries if queries > 0 else 0.0


def _prefix_cache(base: Facts, cand: Facts) -> str | None:
    rates = hit_rate(base), hit_rate(cand)
    if rates[0] is None or rates[1] is None:
        return "the prefix cache hit rate is not known on both sides"
    if abs(rates[0] - rates[1]) > HIT_RATE_GAP:
        return f"hit rate {100 * rates[1]:.0f} % against {100 * rates[0]:.0f} % of the baseline"
    return None


def length_ratio(base: Facts, cand: Facts) -> float | None:
    """Mean output tokens, candidate over baseline."""
    lengths = value(base, "mean_output_tokens"), value(cand, "mean_output_tokens")
    return None if lengths[0] is None or lengths[1] is None or lengths[0] <= 0 else lengths[1] / lengths[0]


def _lengths(base: Facts, cand: Facts) -> str | None:
    if (value(cand, "temperature") or 0.0) > 0.0:
        return None  # sampled lengths differ by chance
    ratio = length_ratio(base, cand)
    if ratio is None:
        return "the output lengths are not known on both sides"
    if LENGTH_BAND[0] <= ratio <= LENGTH_BAND[1]:
        return None
    return (
        f"mean output {cand['mean_output_tokens']:g} tokens against {base['mean_output_tokens']:g}: ratio {ratio:.3f}"
    )


def _provenance(base: Facts, cand: Facts) -> str | None:
    texts = base.get("provenance_equal"), cand.get("provenance_equal")
    if texts[0] is None or texts[1] is None:
        return "what ran (version, model, GPU) is not known on both sides"
    one, two = json.loads(str(texts[0])), json.loads(str(texts[1]))
    allowed = set(cand.get("allowed_differences") or ())
    differ = sorted(k for k in {*one, *two} if one.get(k) != two.get(k) and k not in allowed)
    return "; ".join(f"{k}: {one.get(k)!r} against {two.get(k)!r}" for k in differ) or None


def _gamma(base: Facts, cand: Facts) -> str | None:
    one, two = base.get("gamma"), cand.get("gamma")
    return None if one is None or two is None or one == two else f"num_spec_tokens differ ({one} vs {two})"


PAIR_CHECKS: tuple[PairCheck, ...] = (
    PairCheck(
        "prefix_cache_warm",
        "5 points of hit rate",
        "One side was served from the prefix cache: its TTFT says nothing about speculation.",
        "Restart the server or reset the prefix cache between configs; keep the prompt salt.",
        _prefix_cache,
    ),
    PairCheck(
        "output_length_mismatch",
        "95 to 105 % at temperature 0",
        "A shorter answer is faster without being better.",
        "Set ignore_eos for all configs, or find out why the outputs differ.",
        _lengths,
    ),
    PairCheck(
        "provenance_differs",
        "equal but for the speculative config",
        "The difference may come from another version, model or GPU.",
        "Run both configs on the same machine and build.",
        _provenance,
    ),
    PairCheck(
        "gamma_differs",
        "equal num_speculative_tokens",
        "A/D has gamma in its denominator: proposing more lowers it though the same tokens are accepted.",
        "Compare mean_acceptance_length or the acceptance per position instead.",
        _gamma,
        blocking=False,
    ),
)

RUN_REASONS: dict[str, Reason] = {
    reason.code: reason
    for reason in (
        Reason(
            "no_slo",
            "no criterion is configured",
            "at least one [[slo]]",
            "A gate without a limit cannot fail, so it must not pass.",
            "Write [[slo]] tables into the plan or give --slo FILE.",
        ),
        Reason(
            "no_cells",
            "the run has no cell",
            "at least one measured cell",
            "There is nothing to judge.",
            "Run the plan.",
        ),
        Reason(
            "no_baseline",
            "no baseline cell with the same mix, sampling, load and repeat",
            "a baseline for each comparison",
            "Without a baseline nothing says that speculation pays.",
            "Add a config without speculation and run it at the same loads.",
        ),
    )
}
"""Reasons about a run or a comparison as a whole."""


def pair_reasons(baseline: Facts, candidate: Facts) -> list[Reason]:
    """Every reason why these two cells may not be compared; hints included."""
    return [reason for check in PAIR_CHECKS if (reason := check.run(baseline, candidate)) is not None]
