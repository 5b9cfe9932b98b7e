"""An exploration as JUnit XML: one test case, failed by its finding, so that a CI shows the interleaving."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from kvscope.inspector.junit_file import write_suite, xml_text

if TYPE_CHECKING:
    from kvscope.inspector.races.allocators import AllocatorOutcome
    from kvscope.inspector.races.outcome import Outcome


def write_junit(path: Path, name: str, result: Outcome | AllocatorOutcome) -> None:
    """Write the file; it is whole or not there."""
    failed = "1" if result.found else "0"
    suite = ElementTree.Element(
        "testsuite", name="kvscope races", tests="1", failures=failed, errors="0", skipped="0",
        time=f"{result.seconds:.3f}",
    )  # fmt: skip
    case = ElementTree.SubElement(
        suite, "testcase", classname="kvscope.races", name=xml_text(name), time=suite.attrib["time"]
    )
    text = xml_text(result.text())
    if result.found:
        ElementTree.SubElement(case, "failure", type="race", message=text.split("\n")[0]).text = text
    else:
        ElementTree.SubElement(case, "system-out").text = text
    write_suite(path, suite)
