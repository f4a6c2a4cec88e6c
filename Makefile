# `make demo` and `make test` are all a newcomer needs; both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Modules are compiled to bytecode when they are first imported: most of torch never is.
PIP := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt
DEMO_READY := $(VENV)/.demo-ready
DEV_READY := $(VENV)/.dev-ready
DOCS_READY := $(VENV)/.docs-ready

# Real data sets, when they lie beside the checkout; tests that need them are skipped otherwise.
export HOPFY_DATA ?= $(wildcard $(abspath ../shared/data))

.PHONY: demo test test-all fuzz lint bench docs clean setup

setup: $(DEV_READY)

# What `make demo` needs: the library, plots and estimators, and no judge, linter or bench package.
$(DEMO_READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch --editable ".[demo]"
	touch $@

# What `make test` and `make bench` need on top of it.
$(DEV_READY): $(DEMO_READY)
	$(PIP) --editable ".[dev]"
	touch $@

# What `make docs` needs: the generators of the site, and no judge or linter.
$(DOCS_READY): $(DEMO_READY)
	$(PIP) --editable ".[docs]"
	touch $@

demo: $(DEMO_READY)
	$(BIN)/hopfy demo

# The site in site/index.html; warnings are errors, nothing is loaded from elsewhere.
docs: $(DOCS_READY)
	OMP_NUM_THREADS=1 $(BIN)/python docs/_site/build.py
	$(BIN)/python docs/_site/check.py

lint: $(DEV_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Two test processes, so one torch thread for each; tests that are about threads ask for more.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

test-all: lint
	OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=search $(BIN)/python -m pytest -n 2

# New random cases for FUZZ_SECONDS in total; failures are kept in .hypothesis/fuzz and tried first.
FUZZ_SECONDS ?= 300
fuzz: $(DEV_READY)
	OMP_NUM_THREADS=1 FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest tests/fuzz -m fuzz -rA

bench: $(DEV_READY)
	$(BIN)/hopfy bench

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis hopfy-report site build
