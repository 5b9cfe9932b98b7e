"""What `tests/mutants.py` is made of. No suite: pytest finds nothing here."""
