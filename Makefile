# `make demo` and `make test` need Python 3.11 or later and make; each makes its own .venv and installs into it.
VENV ?= .venv
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := $(VENV)/bin

.PHONY: demo test lint docs fast

demo: $(VENV)/.installed
	$(BIN)/replicast demo --out demo-out

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto

# Optional: engine and fleet as machine code, kept in the user's cache; needs a C compiler.
fast: $(VENV)/.installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fast]'
	$(BIN)/python -m replicast.sim.engine.compiled

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Writes docs/cli.md from --help, and the outputs in README.md; a test fails where it was forgotten.
docs: $(VENV)/.installed-test
	$(BIN)/python docs/generate.py

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "replicast needs Python 3.11 or later: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	@echo "Installing into $(VENV), once"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/bin/python pyproject.toml
	@echo "Installing into $(VENV), once"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,all]'
	@touch $@ $(VENV)/.installed
