"""`python -m kvscope.inspector.fuzz TARGET`: the same as `kvscope fuzz TARGET`."""

import sys

from kvscope.inspector.cli import run

if __name__ == "__main__":
    sys.exit(run(["fuzz", *sys.argv[1:]]))
