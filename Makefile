# Everything from a fresh clone: `make chat` talks, `make test` proves. Needs Python 3.11+, a C++ compiler, cmake, make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: chat test check fast clean

chat: $(VENV)/.runtime
	@$(BIN)/icarus-local chat --agents coder,reviewer $(ARGS)

test: check
	$(BIN)/pytest --ignore=tests/tui
	$(BIN)/pytest tests/tui --cov=icarus_tui --cov-branch --cov-report=term:skip-covered --cov-fail-under=90

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The tests that take seconds, for while one works.
fast: $(VENV)/.dev
	$(BIN)/pytest -m "not slow"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[smollm2]" >&2
	@touch $@

# Torch is asked for with the rest, so that one resolver run sees all bounds.
$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[smollm2,train,bench,data,dev]"
	@touch $@ $(VENV)/.runtime

clean:
	rm -rf $(VENV)
