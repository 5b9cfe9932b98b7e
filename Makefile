# The whole contributor interface. Every target does its own set-up in .venv; nothing outside it is touched,
# except the model cache (~/.cache/kvscope) and, for `make test`, a browser if none is there.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test lint types bench races soak asan mutants browser clean

help:
	@echo "make demo    the real model, a planted bug, the report, the dashboard (Ctrl-C ends it)"
	@echo "make test    every test: unit, properties, real model, real browser"
	@echo "make lint    ruff       make types   mypy       make bench   the benchmarks of this machine"
	@echo "make races   every schedule of our pool up to 3 preemptions, and every planted concurrency fault"
	@echo "make soak    a million mixed operations beside a reference, then eight threads on one pool for a minute,"
	@echo "             10,000 clean runs in which nothing may be found, then 1,000 clients of the server at once,"
	@echo "             a million rule steps of the fuzzer, the part in C under AddressSanitizer, every mutant"
	@echo "make asan    what is written in C under AddressSanitizer and UBSan (needs gcc)"
	@echo "make mutants mutation testing of pool, tables, prefix cache and sanitizer, for 14 minutes"

$(VENV)/python.ok:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "kvscope needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "cannot make a virtual environment: install your system's python3-venv package" >&2; exit 1; }
	@touch $@

# Two layers: what the demo needs, and what the tests need on top.
$(VENV)/demo.ok: $(VENV)/python.ok pyproject.toml setup.py $(wildcard */*.[ch] */*/*.[ch]) constraints.txt
	@echo "installing kvscope with engine, dashboard and server into $(VENV) (once) ..."
	@$(PIP) torch
	@$(PIP) -e '.[engine,dashboard,server]'
	@touch $@

$(VENV)/dev.ok: $(VENV)/demo.ok pyproject.toml constraints.txt
	@echo "installing the test tools into $(VENV) (once) ..."
	@$(PIP) -e '.[dev]'
	@touch $@

demo: $(VENV)/demo.ok
	@$(BIN)/kvscope models get smollm2
	@$(BIN)/kvscope demo $(ARGS)

test: $(VENV)/dev.ok browser
	@$(BIN)/kvscope models get smollm2
	@$(BIN)/python tests/run.py $(ARGS)

browser: $(VENV)/dev.ok
	@$(BIN)/python tests/browser/ensure.py

lint: $(VENV)/dev.ok
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/dev.ok
	@$(BIN)/mypy

bench: $(VENV)/dev.ok
	@$(BIN)/kvscope bench trace
	@$(BIN)/kvscope bench pool
	@$(BIN)/kvscope bench simulate
	@$(BIN)/kvscope bench generate

# Every schedule of our pool up to 3 preemptions, and every planted concurrency fault from 10 seeds.
races: $(VENV)/dev.ok
	@$(BIN)/python -m kvscope.benchmarks races --exhaustive 3 $(ARGS)

soak: $(VENV)/dev.ok
	@$(BIN)/python -m kvscope.benchmarks.soak --operations 1000000
	@$(BIN)/python -m kvscope.benchmarks.hammer --threads 8 --seconds 60
	@$(BIN)/python -m kvscope.benchmarks.false_alarms --runs 10000
	@$(BIN)/python -m kvscope.benchmarks.serve_soak --clients 1000
	@$(BIN)/kvscope models get smollm2
	@$(BIN)/python tests/run.py quality -- --thorough -k parity
	@$(BIN)/python -m kvscope.benchmarks.rules --steps 1000000
	@$(MAKE) --no-print-directory asan
	@$(MAKE) --no-print-directory mutants ARGS="--seconds 86400"

asan: $(VENV)/dev.ok
	@$(BIN)/python tests/asan.py $(ARGS)

# A sample of 14 minutes; all of them are part of `make soak`.
mutants: $(VENV)/dev.ok
	@$(PIP) -e '.[mutants]'
	@$(BIN)/python tests/mutants.py $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis test-results demo-out
