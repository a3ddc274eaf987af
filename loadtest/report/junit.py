"""JUnit XML: suite = cell (or pool of repeats), case = criterion.

INCONCLUSIVE is an `<error>`: CI servers show `<skipped>` as green, and a gate that could not decide is not green.
The figures are in the body too, since some readers drop attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree import ElementTree as ET

from loadtest.judge.verdict import Check, Verdict

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold at all; they come from server error texts."""


def render(verdict: Verdict) -> bytes:
    """The verdict as JUnit XML, UTF-8."""
    root = ET.Element("testsuites", name=f"loadtest {verdict.run_id}")
    total = {"tests": 0, "failures": 0, "errors": 0}
    for name, checks in _suites(verdict.checks):
        suite = ET.SubElement(root, "testsuite", name=_clean(name))
        counts = {"tests": 0, "failures": 0, "errors": 0}
        for check in checks:
            counts["tests"] += 1
            case = ET.SubElement(suite, "testcase", classname=_clean(name), name=_clean(check.slo), time="0")
            if check.status == "FAIL":
                counts["failures"] += 1
                ET.SubElement(case, "failure", type="slo", message=_clean(check.reason)).text = _clean(check.reason)
            elif check.status == "INCONCLUSIVE":
                counts["errors"] += 1
                ET.SubElement(case, "error", type="inconclusive", message=_clean(check.reason)).text = _clean(
                    check.reason
                )
            else:
                ET.SubElement(case, "system-out").text = _clean(check.reason)
        suite.attrib.update({k: str(v) for k, v in counts.items()})
        total = {k: total[k] + counts[k] for k in total}
    overall = ET.SubElement(root, "testsuite", name="verdict", tests="1")
    case = ET.SubElement(overall, "testcase", classname="verdict", name="the run as a whole", time="0")
    failed, inconclusive = verdict.status == "FAIL", verdict.status == "INCONCLUSIVE"
    overall.attrib.update(failures=str(int(failed)), errors=str(int(inconclusive)))
    if failed:
        ET.SubElement(case, "failure", type="verdict", message=_clean(verdict.sentence)).text = _clean(verdict.sentence)
    if inconclusive:
        error = ET.SubElement(case, "error", type="inconclusive", message=_clean(verdict.sentence))
        error.text = _clean("\n".join([verdict.sentence, *(f"{r.code}: {r.seen}. {r.do}" for r in verdict.reasons)]))
    total = {
        "tests": total["tests"] + 1,
        "failures": total["failures"] + failed,
        "errors": total["errors"] + inconclusive,
    }
    root.attrib.update({k: str(v) for k, v in total.items()})
    ET.indent(root)
    content: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return content


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
