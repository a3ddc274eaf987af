"""Writes the tables of datasets/README.md from the prompt files, or checks that they are current.

    python datasets/describe.py            rewrite the part between the markers
    python datasets/describe.py --check    exit 1 if it is not current

Needs the standard library only. A token is estimated as 4 characters, the usual rule of thumb for English; a byte-level
tokenizer needs up to 3 tokens for one Chinese character.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
FILES = ("code.jsonl", "chat.jsonl", "warmup.jsonl")
BEGIN, END = "<!-- tables: written by describe.py -->", "<!-- end of tables -->"
CHARS_PER_TOKEN = 4


def read(name: str) -> list[dict[str, Any]]:
    """The rows of one prompt file."""
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def user_turns(row: dict[str, Any]) -> list[str]:
    """What the user says in a row, turn by turn."""
    return row["turns"] if "turns" in row else [message["content"] for message in row["messages"]]


def _quantile(ordered: list[int], q: float) -> int:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def _lengths(rows: list[dict[str, Any]]) -> tuple[int, ...]:
    ordered = sorted(sum(map(len, user_turns(row))) for row in rows)
    return (ordered[0], _quantile(ordered, 0.5), _quantile(ordered, 0.9), ordered[-1])


def _range(values: tuple[int, ...]) -> str:
    return " / ".join(str(value) for value in values)


def tables() -> str:
    """The part of the README that follows from the files."""
    parts = []
    for name in FILES:
        rows = read(name)
        digest = hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()
        languages = Counter(row["language"] for row in rows)
        by_language = ", ".join(f"{lang} {n}" for lang, n in sorted(languages.items(), key=lambda x: (-x[1], x[0])))
        tested, talks = (sum(key in row for row in rows) for key in ("tests", "turns"))
        parts += [
            f"### {name}",
            "",
            f"{len(rows)} prompts, {tested} with unit tests, {talks} with several turns. Languages: {by_language}.",
            "",
            f"SHA-256 `{digest}`",
            "",
            "| stratum | prompts | characters: min / median / P90 / max | estimated tokens |",
            "|---|---:|---:|---:|",
        ]
        strata: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            strata.setdefault(row["stratum"], []).append(row)
        for stratum, members in [*strata.items(), ("**all**", rows)]:
            chars = _lengths(members)
            tokens = tuple(-(-count // CHARS_PER_TOKEN) for count in chars)
            parts.append(f"| {stratum} | {len(members)} | {_range(chars)} | {_range(tokens)} |")
        parts.append("")
    return "\n".join(parts)


def main() -> int:
    """Exit code of the command line."""
    parser = argparse.ArgumentParser(description="Keeps the tables of datasets/README.md current.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the tables are not current")
    args = parser.parse_args()
    readme = FOLDER / "README.md"
    text = readme.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        print(f"{readme}: the markers {BEGIN!r} and {END!r} must stand there once each", file=sys.stderr)
        return 1
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    current = f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"
    if args.check:
        if current != text:
            print(f"{readme} is not current; run `python {Path(__file__).name}`", file=sys.stderr)
        return int(current != text)
    readme.write_text(current, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
