"""A check as JUnit XML: one test case per detector code, failed by its findings, so that a CI shows them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

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
    failures = skipped = 0
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
    for key, value in (("tests", len(CODES)), ("failures", failures), ("errors", 0), ("skipped", skipped)):
        suite.set(key, str(value))
    properties = ElementTree.Element("properties")
    for key, number in (("events", result.events), ("blocks", result.blocks), ("slots", result.slots)):
        ElementTree.SubElement(properties, "property", name=key, value=str(number))
    suite.insert(0, properties)
    write_suite(path, suite)
