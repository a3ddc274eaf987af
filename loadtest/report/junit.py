"""JUnit XML: suite = cell (or pool of repeats), case = criterion.

INCONCLUSIVE is an `<error>`: CI servers show `<skipped>` as green, and a gate that could not decide is not green.
The figures are in the body too, since some readers drop attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree import ElementTree as ET

from loadtest.judge.verdict import Check, Status, Verdict
from loadtest.report.criteria import bounds_text, estimate_text, limit_text, n_text

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold at all; they come from server error texts."""


def render(verdict: Verdict) -> bytes:
    """The verdict as JUnit XML, UTF-8."""
    simulated = "SIMULATED " if verdict.simulated else ""
    root = ET.Element("testsuites", name=_clean(f"{simulated}loadtest {verdict.run_id}"))
    totals = [0, 0, 0]
    for name, checks in _suites(verdict.checks):
        counts = [len(checks), *(sum(c.status == s for c in checks) for s in ("FAIL", "INCONCLUSIVE"))]
        suite = _suite(root, simulated + name, counts)
        for check in checks:
            figures = (
                f"{limit_text(check)}; estimate {estimate_text(check)}; bounds {bounds_text(check)}; n {n_text(check)}"
            )
            _case(suite, check.slo, check.status, "slo", check.reason, f"{simulated}{check.reason}\n{figures}")
        totals = [t + c for t, c in zip(totals, counts, strict=True)]
    counts = [1, int(verdict.status == "FAIL"), int(verdict.status == "INCONCLUSIVE")]
    details = "\n".join([verdict.sentence, *(f"{r.code}: {r.seen}. {r.do}" for r in verdict.reasons)])
    overall = _suite(root, f"{simulated}verdict", counts)
    _case(overall, "the run as a whole", verdict.status, "verdict", verdict.sentence, details)
    _count(root, [t + c for t, c in zip(totals, counts, strict=True)])
    ET.indent(root)
    content: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return content


def _suite(root: ET.Element, name: str, counts: list[int]) -> ET.Element:
    suite = ET.SubElement(root, "testsuite", name=_clean(name))
    _count(suite, counts)
    return suite


def _count(element: ET.Element, counts: list[int]) -> None:
    for key, n in zip(("tests", "failures", "errors"), counts, strict=True):
        element.set(key, str(n))
    element.set("skipped", "0")


def _case(suite: ET.Element, name: str, status: Status, kind: str, message: str, body: str) -> None:
    case = ET.SubElement(suite, "testcase", classname=suite.get("name", ""), name=_clean(name), time="0")
    if status == "PASS":
        ET.SubElement(case, "system-out").text = _clean(body)
        return
    tag, kind = ("failure", kind) if status == "FAIL" else ("error", "inconclusive")
    ET.SubElement(case, tag, type=kind, message=_clean(message)).text = _clean(body)


def _suites(checks: Iterable[Check]) -> list[tuple[str, list[Check]]]:
    suites: dict[str, list[Check]] = {}
    for check in checks:
        if not check.gating:
            continue
        scope = check.scope
        if scope is None:
            name = "no cell selected"
        else:
            repeat = "all repeats" if scope.repeat is None else f"repeat {scope.repeat}"
            parts = (scope.config, scope.mix, scope.sampling, scope.load, scope.stratum, repeat)
            name = " / ".join(p for p in parts if p)
        suites.setdefault(name, []).append(check)
    return list(suites.items())


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
