"""The 51 published cases: what the product makes of each input is what was worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cases import kit
from tests.cases.drivers import DRIVERS, World
from tests.cases.entries import Fig, Holds, Ours, Told, Words
from tests.cases.kit import SLUGS, Run, Scrapers
from tests.cases.mapping import MAP

JITTER_MS = 5.0
"""From the replay server's write to the kernel stamp at the client, beside the server's own lateness."""


@pytest.fixture
def world(streams: Run, answers: Run, scrapers: Scrapers, tmp_path: Path) -> World:
    return World(streams, answers, scrapers, tmp_path)


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """The entries of expected.json by dotted path; lists stay whole."""
    if not isinstance(value, dict):
        return {path: value}
    out: dict[str, Any] = {}
    for key, inner in value.items():
        out |= leaves(inner, f"{path}.{key}" if path else key)
    return out


def expected(slug: str) -> dict[str, Any]:
    return leaves(kit.read(slug.partition("-")[0], "expected.json"))


def at(seen: Any, where: str) -> Any:
    for key in filter(None, where.split(".")):
        seen = seen[key] if isinstance(seen, dict) else getattr(seen, key)
    return seen


def equals(got: Any, want: Any, tolerance: float | None) -> bool:
    """Numbers within 1e-6 (the cases give six decimals), measured times within the tolerance, the rest exactly."""
    if isinstance(want, list) and isinstance(got, list | tuple):
        return len(got) == len(want) and all(equals(g, w, tolerance) for g, w in zip(got, want, strict=True))
    if isinstance(want, dict) and isinstance(got, dict):
        return got.keys() == want.keys() and all(equals(got[k], want[k], tolerance) for k in want)
    if isinstance(want, bool) or want is None or isinstance(want, str) or isinstance(got, bool | str | None):
        return type(got) is type(want) and got == want
    return abs(got - want) <= (tolerance or 1e-6)


@pytest.mark.parametrize("slug", SLUGS)
def test_case(slug: str, world: World) -> None:
    number = slug.partition("-")[0]
    seen = DRIVERS[number](world, number)
    wrong = []
    for path, want in expected(slug).items():
        entry = MAP[number][path]
        if isinstance(entry, Words):
            continue
        found = at(seen, entry.where)
        if isinstance(entry, Fig):
            tolerance = JITTER_MS + seen.get("late_ms", 0.0) if entry.timed else None
            got = entry.by(found)
            right = equals(got, want, tolerance)
        elif isinstance(entry, Ours):
            got, want = entry.by(found), entry.value
            right = got == want
        else:
            got = str(found)
            needed = entry.words if isinstance(entry, Told) else (want,)
            right = all(word in got for word in needed)
        if not right:
            wrong.append(f"{path}: {got!r}, expected {want!r}")
    assert not wrong, "\n".join(wrong)


def test_every_case_has_a_driver_and_every_expected_value_an_entry() -> None:
    """Nothing of expected.json is left out in silence: it is asserted, disputed or listed as prose, with a reason."""
    assert {s.partition("-")[0] for s in SLUGS} == set(DRIVERS) == set(MAP)
    assert len(SLUGS) == 51
    for slug in SLUGS:
        entries = MAP[slug.partition("-")[0]]
        assert set(expected(slug)) <= set(entries), slug
        assert any(isinstance(entries[p], Fig | Holds | Told) for p in expected(slug)), slug
        for entry in entries.values():
            if isinstance(entry, Words | Ours):
                assert len(entry.why) > 5


@pytest.mark.parametrize("number", ["37", "38", "40"])
def test_an_event_counts_when_its_last_byte_is_there(streams: Run, number: str, world: World) -> None:
    """The case twenty times slower: 3 ms between first and last byte of an event become 60 ms."""
    from tests.cases.drivers import late_ms
    from tests.cases.exchanges import STRETCH

    name = f"{number} stretched"
    row = next(r for r in streams.rows() if r["prompt_id"] == name)
    want = kit.read(number, "expected.json")["ttft_ms"] * STRETCH
    assert row["outcome"] == "ok"
    assert abs(row["ttft_us"] / 1000 - want) <= JITTER_MS + late_ms(streams, name, row)
