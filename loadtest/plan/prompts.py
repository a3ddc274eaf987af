"""The prompts of every mix, measured and warm-up, and their files in the run folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadtest.errors import DatasetError, PlanError
from loadtest.model import Prompt, to_json
from loadtest.plan.datasets import Dataset, load_dataset
from loadtest.plan.loads import TRACE_FILE, trace_arrivals
from loadtest.plan.places import DEFAULT_WARMUP, dataset_places, find_dataset
from loadtest.plan.rows import content_sha256
from loadtest.plan.schema import Mix, Part, Plan


@dataclass(frozen=True, slots=True)
class MixPrompts:
    """The prompts of one mix; `Prompt.part` counts the parts from 0."""

    name: str
    weights: tuple[float, ...]
    prompts: tuple[Prompt, ...]
    warmup: tuple[Prompt, ...]
    sources: tuple[tuple[str, Dataset], ...]
    """(path as the plan gives it, data set) of each part, then of each warm-up file."""


def load_mixes(plan: Plan) -> list[MixPrompts]:
    """All mixes of a plan. Raises DatasetError for a file without prompts, or a warm-up prompt that is measured too."""
    mixes = [_load_mix(mix, plan.folder) for mix in plan.mix]
    _check_apart(mixes)
    return mixes


def write_prompts(plan: Plan, run_dir: Path) -> tuple[dict[str, str], dict[str, tuple[float, ...]]]:
    """Write `prompts/<mix>.jsonl` and `prompts/<mix>.warmup.jsonl` (one Prompt per line) and `prompts/datasets.json`.

    Returns (name -> path below run_dir, with the warm-up pools as `<mix>.warmup`; mix -> weight of each part).
    Raises DatasetError before anything is written.
    """
    mixes = load_mixes(plan)
    folder = run_dir / "prompts"
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, str] = {}
    for mix in mixes:
        for name, prompts in ((mix.name, mix.prompts), (f"{mix.name}.warmup", mix.warmup)):
            path = folder / f"{name}.jsonl"
            lines = [json.dumps(to_json(prompt), ensure_ascii=False) + "\n" for prompt in prompts]
            path.write_text("".join(lines), encoding="utf-8", newline="\n")
            files[name] = path.relative_to(run_dir).as_posix()
    if plan.load.trace is not None:
        offsets = trace_arrivals(plan).offsets_s
        (run_dir / TRACE_FILE).write_text("".join(f"{t!r}\n" for t in offsets), encoding="ascii", newline="\n")
    told = json.dumps(summary(mixes), ensure_ascii=False, indent=1)
    (folder / "datasets.json").write_text(f"{told}\n", encoding="utf-8", newline="\n")
    return files, {mix.name: mix.weights for mix in mixes}


def summary(mixes: Sequence[MixPrompts]) -> dict[str, Any]:
    """What became of every file: mix -> [{dataset, sha256, prompts, skipped, filtered, warnings}]."""
    return {
        mix.name: [
            {
                "dataset": given,
                "sha256": dataset.sha256,
                "prompts": len(dataset.prompts),
                "skipped": dataset.skip_reasons(),
                "filtered": dataset.filtered,
                "warnings": list(dataset.warnings),
            }
            for given, dataset in mix.sources
        ]
        for mix in mixes
    }


def _load_mix(mix: Mix, folder: Path | None) -> MixPrompts:
    prompts: list[Prompt] = []
    warmup: list[Prompt] = []
    sources: list[tuple[str, Dataset]] = []
    pools: dict[str, int] = {}
    for index, part in enumerate(mix.parts):
        dataset = _load_part(part, folder)
        sources.append((part.dataset, dataset))
        prompts += [_as_part(prompt, index, mix) for prompt in dataset.prompts]
        # Parts that share a pool use it once; a part without warm-up prompts of its own is left out of their order.
        pools.setdefault(part.warmup or DEFAULT_WARMUP, index)
    prompts = _apart(prompts)
    for name, index in pools.items():
        dataset = load_dataset(_found(name, folder))
        sources.append((name, dataset))
        warmup += [_as_part(prompt, index, mix) for prompt in dataset.prompts]
    return MixPrompts(mix.name, tuple(part.weight for part in mix.parts), tuple(prompts), tuple(warmup), tuple(sources))


def _load_part(part: Part, folder: Path | None) -> Dataset:
    return load_dataset(
        _found(part.dataset, folder),
        on_error=part.on_error,
        field=part.field,
        category=part.category,
        stratum=part.stratum,
        limit=part.limit,
    )


def _found(name: str, folder: Path | None) -> Path:
    path = find_dataset(name, folder)
    if path is None:
        looked = ", ".join(str(place) for place in dataset_places(name, folder))
        raise PlanError(f'data set "{name}" not found; looked at {looked}')
    return path


def _as_part(prompt: Prompt, part: int, mix: Mix) -> Prompt:
    later = prompt.later_turns if mix.turns == "all" else ()
    return replace(prompt, part=part, later_turns=later)


def _apart(prompts: list[Prompt]) -> list[Prompt]:
    """Ids that stand in several parts get the part in front: rows are paired between configs by prompt id."""
    parts: dict[str, set[int]] = {}
    for prompt in prompts:
        parts.setdefault(prompt.prompt_id, set()).add(prompt.part)
    return [
        prompt
        if len(parts[prompt.prompt_id]) == 1
        else replace(prompt, prompt_id=f"part{prompt.part}:{prompt.prompt_id}")
        for prompt in prompts
    ]


def _check_apart(mixes: Sequence[MixPrompts]) -> None:
    """A warm-up prompt that is measured too would be answered from a warm cache, in whatever mix it stands."""
    measured = {content_sha256(p.messages): (mix.name, p.prompt_id) for mix in mixes for p in mix.prompts}
    for mix in mixes:
        for prompt in mix.warmup:
            hit = measured.get(content_sha256(prompt.messages))
            if hit is not None:
                raise DatasetError(
                    f'warm-up prompt "{prompt.prompt_id}" of mix "{mix.name}" is measured too '
                    f'(prompt "{hit[1]}" of mix "{hit[0]}"); take it out of one of the files'
                )
