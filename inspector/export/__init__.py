"""Traces in the formats of other tools: `export(trace, "perfetto", Path("run.pftrace"))`."""

from kvscope.inspector.export.formats import FORMATS, Exported, Format, export
from kvscope.inspector.export.output import ExportError

__all__ = ["FORMATS", "ExportError", "Exported", "Format", "export"]
