"""Files of other forms made into trace folders."""

from kvscope.inspector.importing.jsonl import Imported, import_jsonl

__all__ = ["Imported", "import_jsonl"]
