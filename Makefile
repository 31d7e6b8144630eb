# make demo: the robot arm, from nothing to a picture.  make test: every test but the long ones.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# One thread for each process: several workers share the cores, and small products are slower on two threads.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

# How many tests run at once.
JOBS ?= 2

.PHONY: demo test test-long check bench

demo: $(VENV)/.installed-plots
	$(BIN)/rayfbnn demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

test-long: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m long --durations 15

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed-dev
	$(BIN)/python tests/benchmarks/leapfrog_steps.py

$(VENV)/bin/python:
	@$(PYTHON) -m venv $(VENV)

# A stamp older than pyproject.toml says that what is needed has changed. dev holds plots.
$(VENV)/.installed-plots: pyproject.toml | $(VENV)/bin/python
	@if [ $(VENV)/.installed-dev -nt pyproject.toml ]; then :; else \
	    echo "installing into $(VENV): a minute or two"; $(PIP) --editable '.[plots]'; fi
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV): a minute or two"
	@$(PIP) --editable '.[dev]'
	@touch $@
