# Two commands: `make audit` shows what Seepage does, `make test` checks that it does it right.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt

.PHONY: audit test federations fuzz docs lint format clean

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
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not federation"
	$(BIN)/python -m pytest -q -m federation tests/frameworks tests/audit

# Flower's own commands: a simulation on Ray, and a deployment over loopback; then our own trials on three raylets, of
# which one is killed. About two minutes, one after the other.
federations: $(STAMP)
	$(BIN)/python -m pytest -q -m federation tests/frameworks tests/audit

# 117,000 damaged files of nine kinds, and as many more as atheris makes up in a minute, if it is there: some seven minutes
# of one core, and stopped after forty-five.
fuzz: $(STAMP)
	SEEPAGE_FUZZ=13000 timeout 2400 $(BIN)/python -m pytest -q -n $(WORKERS) tests/test_capture_fuzz.py
	@if $(BIN)/python -c 'import atheris' 2>/dev/null; then mkdir -p .hypothesis; \
	  timeout 300 $(BIN)/python tests/fuzz/fuzz_files.py -max_total_time=60 -artifact_prefix=.hypothesis/; \
	else echo "atheris is not installed: coverage-guided fuzzing left out (pip install atheris)"; fi

# The documentation as a site in site/, which loads nothing from elsewhere; `make test` builds it too.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Wrote site/index.html"

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) seepage-report site
