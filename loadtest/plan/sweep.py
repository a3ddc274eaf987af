"""`[sweep]`: one config per value, with names that say it."""

from __future__ import annotations

import itertools
import re
from typing import Any

from loadtest.plan.problems import Loc
from loadtest.plan.schema import NAME_PATTERN, Config, Plan

GAMMA = "num_speculative_tokens"


class SweepError(ValueError):
    """A sweep that cannot be expanded; `loc` is the key at fault."""

    def __init__(self, loc: Loc, text: str) -> None:
        super().__init__(text)
        self.loc = loc


def swept(plan: Plan) -> list[Config]:
    """All configs in the plan's order, each speculative one expanded by the sweep.

    `ngram` with `num_speculative_tokens = [2, 4]` gives `ngram-2` and `ngram-4`; so does `ngram-4`. Another key gives
    `ngram-4-prompt_lookup_max-5`. Raises SweepError for a key that no config has and for names that collide.
    """
    configs: list[Config] = []
    used: set[str] = set()
    for config in plan.config:
        expanded, keys = _expand(config, plan.sweep)
        configs += expanded
        used |= keys
    for key in plan.sweep:
        if key not in used:
            raise SweepError(("sweep", key), f"no config has `{key}` in `speculative`, so there is nothing to sweep")
    seen: set[str] = set()
    for config in configs:
        if config.name.lower() in seen:
            raise SweepError(("sweep",), f'two configs are called "{config.name}" after the sweep; rename one')
        if not re.match(NAME_PATTERN, config.name):
            raise SweepError(
                ("sweep",), f'"{config.name}" is no usable name (64 characters at most); shorten the values'
            )
        seen.add(config.name.lower())
    return configs


def _expand(config: Config, sweep: dict[str, list[Any]]) -> tuple[list[Config], set[str]]:
    speculative = config.speculative
    if speculative is None or not config.sweep:
        return [config], set()
    keys = [key for key in sweep if key == GAMMA or key in speculative]
    if not keys:
        return [config], set()
    stem = _stem(config.name, speculative, sweep.get(GAMMA)) if GAMMA in keys else config.name
    expanded = []
    for values in itertools.product(*(sweep[key] for key in keys)):
        chosen = dict(zip(keys, values, strict=True))
        name = stem + "".join(f"-{v}" if k == GAMMA else f"-{k}-{_word(v)}" for k, v in chosen.items())
        expanded.append(config.model_copy(update={"name": name, "speculative": {**speculative, **chosen}}))
    return expanded, set(keys)


def _stem(name: str, speculative: dict[str, Any], gammas: list[Any] | None) -> str:
    """The name without a gamma that it already ends in."""
    match = re.match(r"^(.+)-(\d+)$", name)
    if match is None:
        return name
    known = [*(gammas or []), speculative.get(GAMMA)]
    return match.group(1) if int(match.group(2)) in known else name


def _word(value: object) -> str:
    """A value as part of a name: what no folder name takes becomes `_`."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", str(value).lower() if isinstance(value, bool) else str(value))
