"""Where JUnit reports go: tested before the work that they report, and written whole or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

from kvscope.errors import KVScopeError, UsageError

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LOOKED_AT = 4096  # bytes of a file that is there


class ReportError(KVScopeError):
    """A report cannot be written."""


def ready_for_junit(path: Path | None) -> None:
    """See that a report can be written to `path`, before the work begins; folders that are missing are made.

    Raises:
        UsageError: it is no place for a file, or a file is there that is no JUnit report.
    """
    if path is None:
        return
    try:
        if path.is_dir():
            raise UsageError(f"cannot write {path}: it is a folder; name a file for the JUnit report")
        if os.path.lexists(path) and path.exists():
            if not path.is_file():
                raise UsageError(f"cannot write {path}: it is no regular file; name another for the JUnit report")
            with path.open("rb") as file:
                begins = file.read(_LOOKED_AT)
            if begins and b"<testsuite" not in begins:
                raise UsageError(f"cannot write {path}: the file there is no JUnit report; choose another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = _partial(path)
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def write_suite(path: Path, suite: ElementTree.Element) -> None:
    """Write a report; it is whole or not there.

    Raises:
        ReportError: it cannot be written.
    """
    partial = _partial(path)
    try:
        ElementTree.ElementTree(suite).write(partial, encoding="utf-8", xml_declaration=True)
        partial.replace(path)
    except OSError as error:
        raise ReportError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def errors_in_junit(path: Path | None, command: str, subject: str) -> Iterator[None]:
    """What ends the body with an error is told by a report too, as an error: a CI that waits for one finds it.

    Args:
        command: as the report names it, `check`. subject: what it was about.
    """
    try:
        yield
    except KVScopeError as error:
        if path is not None and not isinstance(error, ReportError):
            ready_for_junit(path)
            suite = ElementTree.Element("testsuite", name=f"kvscope {command} {xml_text(subject)}", tests="1",
                                        failures="0", errors="1", skipped="0", time="0")  # fmt: skip
            case = ElementTree.SubElement(suite, "testcase", classname=f"kvscope.{command}", name=command, time="0")
            said = xml_text(" ".join(str(error).split()))
            ElementTree.SubElement(case, "error", type=type(error).__name__, message=said)
            write_suite(path, suite)
        raise


def xml_text(text: str) -> str:
    """Without the characters that XML cannot hold."""
    return _NOT_XML.sub("?", text)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial-{os.getpid()}")


__all__ = ["ReportError", "errors_in_junit", "ready_for_junit", "write_suite", "xml_text"]
