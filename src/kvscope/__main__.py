"""`python -m kvscope` is the `kvscope` command."""

from kvscope.inspector.cli import main

main()
