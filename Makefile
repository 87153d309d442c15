# `make demo` and `make test` build what they need in .venv and run from a fresh clone.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check install -qq -c constraints.txt

.PHONY: demo test test-slow lint bench clean

demo: $(VENV)/.runtime
	$(BIN)/serve-eval demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -q -m "not slow"

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -q -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python bench/startup.py

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "serve-eval needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing serve-eval into $(VENV)"
	@$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing serve-eval and its development tools into $(VENV)"
	@$(PIP) -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
