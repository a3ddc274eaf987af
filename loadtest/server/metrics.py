"""Reads the text of a `/metrics` page, Prometheus 0.0.4 or OpenMetrics, into samples. Pure; imports nothing of ours.

One tokenizer for both flavours: prometheus_client gives up a whole page for one bad line, renames counters without
`_total` and takes OpenMetrics' seconds for milliseconds when the flavour is guessed wrong. Where it does read a page,
this parser gives the same samples (the tests compare them on captures of real servers).
A line that cannot be read is counted and named; it never hides the others and never becomes a zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["counter", "gauge", "histogram", "summary", "info", "unknown"]

VLLM_PREFIX = "vllm:"
MAX_BROKEN_NAMED = 20
"""Broken lines that are quoted; an HTML page would otherwise fill the log. All of them are counted."""

_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_NAME = re.compile(r"[^\s{}\"#=,]+")
_TERM = re.compile(rf"[\s,]*(?:{_QUOTED}|([^\s=,{{}}\"]+))\s*(?:(=)\s*{_QUOTED})?\s*(?=[,}}])")
_END = re.compile(r"[\s,]*\}")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|infinity|nan)\Z", re.IGNORECASE)
_SUFFIXES = ("_total", "_bucket", "_count", "_sum", "_created", "_info")
_KINDS: dict[str, Kind] = {
    "counter": "counter",
    "gauge": "gauge",
    "histogram": "histogram",
    "gaugehistogram": "histogram",
    "summary": "summary",
    "info": "info",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the page. `value` may be NaN or infinite, as exposed; `timestamp_s` is UNIX seconds or None."""

    name: str
    labels: Mapping[str, str]
    value: float
    kind: Kind
    timestamp_s: float | None = None


@dataclass(slots=True)
class Page:
    """A parsed page. `created` holds the `*_created` samples (UNIX seconds at which a series began) apart."""

    samples: list[Sample] = field(default_factory=list)
    created: list[Sample] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Up to MAX_BROKEN_NAMED texts such as `line 7: no closing brace: vllm:x{…`."""
    broken_lines: int = 0
    duplicates: int = 0
    """Samples whose name and labels occurred before on the page."""
    openmetrics: bool = False

    @property
    def vllm_series(self) -> int:
        """Number of samples whose name starts with `vllm:`; 0 means that no engine wrote this page."""
        return sum(s.name.startswith(VLLM_PREFIX) for s in self.samples)


def parse(text: str | bytes, content_type: str | None = None) -> list[Sample]:
    """The samples of a page without its `*_created` ones. Never raises; `parse_page` also tells what was broken."""
    return parse_page(text, content_type).samples


def parse_page(text: str | bytes, content_type: str | None = None) -> Page:
    """Everything on a page. `content_type` decides the flavour; without one a `# EOF` line means OpenMetrics."""
    page = Page()
    if isinstance(text, bytes):
        text = _decode(text, page)
    lines = text.removeprefix("\ufeff").split("\n")
    has_eof = any(line.strip() == "# EOF" for line in lines[-3:])
    declared = "openmetrics" in (content_type or "").lower()
    page.openmetrics = declared or has_eof
    if declared and not has_eof:
        _broken(page, "the page has no `# EOF` line: it was cut short")
    types: dict[str, str] = {}
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if not line:
            continue
        if line.startswith("#"):
            _read_type(line, types)
            continue
        try:
            name, labels, value, stamp = _read_sample(line)
        except ValueError as error:
            _broken(page, f"line {number}: {error}: {line[:120]}")
            continue
        identity = (name, tuple(sorted(labels.items())))
        page.duplicates += identity in seen
        seen.add(identity)
        stamp_s = stamp if stamp is None or page.openmetrics else stamp / 1000
        sample = Sample(name, labels, value, _kind_of(name, types), stamp_s)
        (page.created if name.endswith("_created") else page.samples).append(sample)
    return page


def families(samples: Iterable[Sample]) -> set[str]:
    """Family names: histogram samples lose `_bucket`, `_count`, `_sum`; counters keep `_total`."""
    found = set()
    for sample in samples:
        name = sample.name
        if sample.kind in ("histogram", "summary"):
            name = name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
        found.add(name)
    return found


def _decode(raw: bytes, page: Page) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        _broken(page, f"byte {error.start} is not UTF-8 (0x{raw[error.start]:02x})")
        return raw.decode("utf-8", errors="replace")


def _broken(page: Page, text: str) -> None:
    page.broken_lines += 1
    if len(page.broken) < MAX_BROKEN_NAMED:
        page.broken.append(text)


def _read_type(line: str, types: dict[str, str]) -> None:
    parts = line.split(None, 3)
    if len(parts) == 4 and parts[0] == "#" and parts[1] == "TYPE":
        types[_unescape(parts[2].strip('"'))] = parts[3].strip().lower()


def _read_sample(line: str) -> tuple[str, dict[str, str], float, float | None]:
    match = _NAME.match(line)
    name, position = (match.group(), match.end()) if match else ("", 0)
    labels: dict[str, str] = {}
    rest = line[position:].lstrip()
    if rest.startswith("{"):
        inner, rest = _read_labels(rest)
        quoted = inner.pop("", None)
        if name and quoted is not None:
            raise ValueError("two metric names")
        name, labels = name or quoted or "", inner
    if not name:
        raise ValueError("no metric name")
    value, stamp = _read_value(rest)
    return name, labels, value, stamp


def _read_labels(text: str) -> tuple[dict[str, str], str]:
    """The labels of `{…} rest` and the rest. A quoted term without `=` is the metric's name, kept under ""."""
    labels: dict[str, str] = {}
    position = 1
    while not (end := _END.match(text, position)):
        term = _TERM.match(text, position)
        if not term:
            raise ValueError("labels cannot be read")
        quoted, bare, equals, value = term.groups()
        if equals is None and bare is not None:
            raise ValueError(f"label {bare!r} has no value")
        key = "" if equals is None else (bare if bare is not None else _unescape(quoted))
        if key in labels:
            raise ValueError(f"label {key!r} stands twice")
        labels[key] = _unescape(quoted if equals is None else value)
        position = term.end()
    return labels, text[end.end() :]


def _read_value(rest: str) -> tuple[float, float | None]:
    """Value and timestamp; what follows a free-standing `#` is an exemplar."""
    words = rest.split()
    if "#" in words:
        words = words[: words.index("#")]
    if not 1 <= len(words) <= 2:
        raise ValueError("no value" if not words else "more than a value and a timestamp")
    for word in words:
        if not _NUMBER.match(word):
            raise ValueError(f"not a number: {word!r}")
    return float(words[0]), float(words[1]) if len(words) == 2 else None


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda m: {"n": "\n", '"': '"', "\\": "\\"}.get(m.group(1), m.group(0)), text)


def _kind_of(name: str, types: Mapping[str, str]) -> Kind:
    found = types.get(name)
    if found is None:
        for suffix in _SUFFIXES:
            if name.endswith(suffix) and (found := types.get(name.removesuffix(suffix))) is not None:
                break
    if name.endswith("_info"):  # client libraries of Python expose an info family as a gauge
        return "info"
    return _KINDS.get(found or "", "unknown")
