"""See, replay and debug the memory of paged LLM engines."""

__version__ = "0.1.0"

__all__ = ["__version__"]
