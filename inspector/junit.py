"""A check as JUnit XML: one test case per detector code, failed by its findings, so that a CI shows them.

A code whose detectors had nothing to look at is skipped, not passed; a check that looked at no block is an error. What
limits the check (events that are missing, an end that is not clean) is told in its properties.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from kvscope.inspector.detectors import detector_types
from kvscope.inspector.findings import CODES, CheckResult
from kvscope.inspector.junit_file import write_suite, xml_text
from kvscope.inspector.report import report
from kvscope.inspector.source import TraceLike, frozen
from kvscope.inspector.suppress import Suppressed

_MOST = 20  # findings of a code that are told in full


def write_junit(
    path: Path, result: CheckResult, trace: TraceLike, *, name: str, suppressed: Iterable[Suppressed] = ()
) -> None:
    """Write the file; it is whole or not there."""
    trace = frozen(trace)
    accepted = {f.code: taken.rule for taken in suppressed for f in taken.findings}
    suite = ElementTree.Element("testsuite", name=f"kvscope check {xml_text(name)}", time=f"{result.elapsed_s:.3f}")
    failures = skipped = errors = 0
    idle = _idle(result)
    if result.nothing_to_check:
        errors = 1
        case = ElementTree.SubElement(suite, "testcase", classname="kvscope.check", name="something to check", time="0")
        ElementTree.SubElement(case, "error", message="nothing was checked: no event speaks of a block")
    for code, (title, _) in CODES.items():
        found = [f for f in result.findings if f.code == code]
        case = ElementTree.SubElement(suite, "testcase", classname="kvscope.check", name=f"{code} {title}", time="0")
        if found:
            failures += 1
            failure = ElementTree.SubElement(
                case, "failure", type=code, message=xml_text(f"{len(found)} x {found[0].why}")
            )
            failure.text = xml_text("\n".join(report(f, trace, name=name) for f in found[:_MOST]))
        elif code in accepted:
            skipped += 1
            rule = accepted[code]
            ElementTree.SubElement(
                case, "skipped", message=xml_text(f"suppressed by {rule}: {rule.reason or 'no reason'}")
            )
        elif code in idle:
            skipped += 1
            ElementTree.SubElement(case, "skipped", message=xml_text(f"nothing to look at: {idle[code]}"))
    tests = len(CODES) + errors
    for key, value in (("tests", tests), ("failures", failures), ("errors", errors), ("skipped", skipped)):
        suite.set(key, str(value))
    properties = ElementTree.Element("properties")
    for key, number in (("events", result.events), ("blocks", result.blocks), ("slots", result.slots)):
        ElementTree.SubElement(properties, "property", name=key, value=str(number))
    for note in result.notes:
        ElementTree.SubElement(properties, "property", name="note", value=xml_text(note))
    suite.insert(0, properties)
    write_suite(path, suite)


def _idle(result: CheckResult) -> dict[str, str]:
    """Codes that none of the detectors that ran could have found, and why."""
    types, why = detector_types(), dict(result.idle)
    looked = {code for name in result.detectors for code in types[name].codes}
    return {code: why[name] for name in why for code in types[name].codes if code not in looked}
