"""Question 1 of a decision, "is the output right?", from everything that a run knows about its outputs.

Greedy: exact equality against the noise between two configs without speculation. Sampled: lengths and finish reasons,
and the greedy answer of the same config. Both: unit tests on code, where a person had them run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadtest.judge.comparisons import CONFIDENCE
from loadtest.judge.context import Context
from loadtest.judge.lossless import Matches, OutputCheck, Outputs, check_outputs
from loadtest.judge.quality import read_quality, unit_tests, words_of
from loadtest.judge.sampled import SampledOutputs
from loadtest.judge.select import CellFacts, Group, baseline_of, is_plain, paired_cells
from loadtest.judge.verdict import UnitTests
from loadtest.model import NOT_MEASURED

TESTED_SHARE = 0.9
"""Prompts of a mix that must carry tests before passing them can stand for the mix."""

Key = tuple[str, str, str]
"""config, mix, sampling"""


def lines_of(context: Context, *, plain: bool) -> dict[Key, list[Group]]:
    """Groups of one config, mix and sampling together; configs without speculation only where asked."""
    lines: dict[Key, list[Group]] = {}
    for group in context.groups:
        if plain or not is_plain(group.first):
            lines.setdefault((group.first["config"], group.first["mix"], group.first["sampling"]), []).append(group)
    return lines


def all_unit_tests(context: Context) -> list[UnitTests]:
    """Figures of every config, mix and sampling whose outputs were tested, baselines included."""
    quality = read_quality(context.data)
    if quality is None:
        return []
    out = []
    for groups in lines_of(context, plain=True).values():
        own = [quality[c["cell_id"]] for g in groups for c in g.cells if c["cell_id"] in quality]
        pairs = [
            (quality[b["cell_id"]], quality[c["cell_id"]])
            for b, c in _pairs(context, groups)
            if b["cell_id"] in quality and c["cell_id"] in quality
        ]
        found = unit_tests(groups[0].first, own, pairs, CONFIDENCE)
        if found is not None:
            out.append(found)
    return out


def output_answers(context: Context, tested: Sequence[UnitTests]) -> dict[Key, OutputCheck]:
    """The answer for every config with speculation, mix and sampling."""
    lines = lines_of(context, plain=False)
    outputs, sampled = Outputs(context.data, context.cells), SampledOutputs(context.data, context.cells)
    greedy = {key: _equality(context, outputs, g) for key, g in lines.items() if not _is_sampled(g)}
    tests = {(t.config, t.mix, t.sampling): t for t in tested}
    answers = {}
    for key, groups in lines.items():
        found = greedy.get(key)
        if found is None:
            found = _sampled(_greedy_answer(key, lines, greedy), sampled.check(_pairs(context, groups)))
        answers[key] = _with_tests(context, groups, found, tests.get(key))
    return answers


def _is_sampled(groups: Sequence[Group]) -> bool:
    return (groups[0].first.get("temperature") or 0.0) > 0.0


def _pairs(context: Context, groups: Sequence[Group]) -> list[tuple[CellFacts, CellFacts]]:
    found = [(baseline_of(group, context.groups), group) for group in groups]
    return [pair for base, group in found if base is not None for pair in paired_cells(base, group)]


def _equality(context: Context, outputs: Outputs, groups: Sequence[Group]) -> OutputCheck:
    """All loads together: equal texts do not get more equal with the load, and noise needs many prompts."""
    same, noise = [], []
    for group in groups:
        base = baseline_of(group, context.groups)
        if base is None:
            continue
        others = [g for g in context.groups if g is not base and is_plain(g.first) and g.key[1:] == base.key[1:]]
        for b, c in paired_cells(base, group):
            same.append(outputs.matches(b, c))
            noise += [outputs.matches(b, o) for g in others for o in g.cells if o["repeat"] == b["repeat"]]
    return check_outputs(Matches.joined(same), Matches.joined(noise), CONFIDENCE, context.seed)


def _greedy_answer(
    key: Key, lines: Mapping[Key, Sequence[Group]], answers: Mapping[Key, OutputCheck]
) -> OutputCheck | None:
    """The answer of a greedy sampling of the same config and mix."""
    for config, mix, sampling in lines:
        if (config, mix) == key[:2] and (config, mix, sampling) in answers:
            found = answers[config, mix, sampling]
            return OutputCheck(found.answer, f"checked at temperature 0 ({sampling}): {found.evidence}")
    return None


def _sampled(greedy: OutputCheck | None, shape: OutputCheck) -> OutputCheck:
    """Sampled outputs differ by chance: a different distribution is a no, a yes needs the greedy outputs."""
    if greedy is None:
        return OutputCheck(
            shape.answer, f"{shape.evidence}; add a sampling with temperature 0 to the plan to check equality"
        )
    answer = "no" if "no" in (greedy.answer, shape.answer) else greedy.answer
    return OutputCheck(answer, f"{greedy.evidence}; {shape.evidence}")


def _with_tests(context: Context, groups: Sequence[Group], found: OutputCheck, tests: UnitTests | None) -> OutputCheck:
    """Failing tests are a no; passing ones make up for an unknown only where (nearly) every prompt has tests."""
    if tests is None:
        return OutputCheck(found.answer, f"{found.evidence}; unit tests: {NOT_MEASURED}")
    evidence = f"{found.evidence}; {words_of(tests)}"
    if tests.non_inferior == "no":
        return OutputCheck("no", evidence)
    rows = context.rows([c for g in groups for c in g.cells])
    asked = len(set(rows["prompt_id"][rows["ok"]].tolist()))
    if found.answer == "not known" and tests.non_inferior == "yes" and tests.prompts >= TESTED_SHARE * asked:
        return OutputCheck("yes", evidence)
    return OutputCheck(found.answer, evidence)
