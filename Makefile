# Two commands: `make audit` shows what Seepage does, `make test` checks that it does it right.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt

.PHONY: audit test lint format clean

# The stamp comes last, so a set-up that was cut short is taken up again. pip first: older ones do not know `--group`.
# torch next, by its exact version: left to a range, pip may fetch another build of several gigabytes.
$(STAMP): pyproject.toml constraints.txt
	@echo "Setting up $(VENV), once; this takes a few minutes."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip
	@$(PIP) torch
	@$(PIP) --build-constraint constraints.txt --editable . --group dev
	@touch $(STAMP)

audit: $(STAMP)
	$(BIN)/seepage audit

test: lint
	$(BIN)/python -m pytest -q -n $(WORKERS)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) seepage-report
