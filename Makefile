# `make demo` and `make test` are all a newcomer needs; both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Real data sets, when they lie beside the checkout; tests that need them are skipped otherwise.
export HOPFY_DATA ?= $(wildcard $(abspath ../shared/data))

.PHONY: demo test test-all lint bench clean clean-kernels setup

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

demo: $(READY)
	$(BIN)/hopfy demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Two test processes, so one torch thread for each; tests that are about threads ask for more.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

test-all: lint
	OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=search $(BIN)/python -m pytest -n 2

bench: $(READY)
	$(BIN)/hopfy bench

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis hopfy-report

# numba does not notice when a kernel's helper in another file has changed.
clean-kernels:
	find src/hopfy/_kernels -name __pycache__ | xargs rm -rf
