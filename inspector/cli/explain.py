"""`kvscope explain`: the story of one request, from its first wrong token back to the event that did it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def explain(
    trace: Annotated[
        Path, typer.Argument(help="A trace: a folder (NAME.kvtrace) or a packed file (NAME.kvpack).", metavar="TRACE")
    ],
    request: Annotated[
        str, typer.Option(help="Name or number of a request; NAME/1 for a sample or a beam, s7 for a sequence.")
    ],
    token: Annotated[int | None, typer.Option(min=0, help="One of its output tokens, counted from 0.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object (kvexplain/1) on standard output.")] = False,
) -> None:
    """Say why a request's text went wrong: the first foreign read, the write behind it, and who else was hit.

    Exits 0 when the request (or the token) is clean, or provenance found the right prefix in all that it read, 1 when
    it is damaged, 2 when there is no such request or the trace has no steps, so that nothing is known of what it read.

    Example: kvscope explain run.kvtrace --request haiku
    """
    from kvscope.inspector.explain import explain as explain_request
    from kvscope.inspector.explain_report import explanation_json, explanation_text
    from kvscope.inspector.explanation import exit_code
    from kvscope.traces import open_trace

    opened = open_trace(trace)
    for line in opened.warnings:
        sys.stderr.write(f"kvscope: note: {line}\n")
    told = explain_request(opened, request, token)
    if as_json:
        sys.stdout.write(json.dumps(explanation_json(told, opened, name=str(trace)), ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(explanation_text(told, opened, name=str(trace)) + "\n")
    raise typer.Exit(exit_code(told.verdict))
