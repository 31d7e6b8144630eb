# make demo: the robot arm, from nothing to a picture.  make test: every test but the long ones.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# One thread for each process: several workers share the cores, and small products are slower on two threads.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

# Memory that is freed stays with the process: tests of many chains otherwise spend time on fetching it again.
export MALLOC_MMAP_THRESHOLD_ ?= 1073741824
export MALLOC_TRIM_THRESHOLD_ ?= 1073741824

# Compiled Python is kept: tests start hundreds of processes, and each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# How many tests run at once: one more than the cores of CI, because one process mostly waits for Ray.
JOBS ?= 3
LONG_JOBS ?= 3

.PHONY: demo test test-long check docs bench bench-steps bench-batches bench-draws bench-overheads bench-tables bench-large-tables bench-new-user peers

demo: $(VENV)/.installed-plots
	$(BIN)/rayfbnn demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

test-long: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(LONG_JOBS) --dist loadgroup -m long --durations 15

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# How many of MUTANTS mechanical mutants the quick tests kill: hours on one core, and resumed where it was stopped.
# Which tests call which function is recorded once; remove the file to record it again.
MUTANTS ?= 200
MUTATION := .benchmarks/mutants
MUTATION_TESTS := $(addprefix tests/,answers approximate core data describe draws mcmc model pictures ring run spec store study correctness)

.PHONY: mutants
mutants: $(MUTATION)/functions.jsonl
	nice -n 5 $(BIN)/python -m benchmarks.mutation.run --mutants $(MUTANTS)

$(MUTATION)/functions.jsonl: | $(VENV)/.installed-dev
	@mkdir -p $(@D) && rm -f $@.part
	nice -n 5 $(BIN)/python -m pytest -p benchmarks.mutation.covering --functions-of-tests $@.part \
	    -m "not long and not ray and not gpu" $(MUTATION_TESTS); [ $$? -le 1 ] && mv $@.part $@

# The tests of a device, for a machine that has CuPy but perhaps neither pydantic, Ray nor Zarr: whole runs of
# ladders, which need pydantic and Zarr, are skipped there.
DEVICE_TESTS := tests/kernels/cuda/test_on_device.py tests/kernels/cuda/test_on_device_alone.py \
    tests/model/test_device.py tests/core/test_streams.py tests/selftest/test_on_device.py \
    tests/correctness/test_joint.py tests/mcmc/test_invariance.py tests/kernels/test_every_backend.py \
    tests/kernels/test_reducing.py tests/mcmc/ladder/test_ladder_on_device.py \
    tests/run/ladders/test_ladders_on_device.py
# The interpreter that has CuPy, and how many tests run at once: compiling takes a core for seconds.
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
GPU_JOBS ?= 8

.PHONY: test-gpu bench-gpu
test-gpu:
	$(GPU_PYTHON) -m benchmarks.device.session --only
	CUPY_CACHE_DIR=$(CURDIR)/.cupy_cache $(GPU_PYTHON) -m pytest -m gpu -n $(GPU_JOBS) --timeout=240 $(DEVICE_TESTS)

# Smoke, tests, benchmarks, sanitizers and a profile, in order of risk; results go to .benchmarks/device/.
bench-gpu:
	$(GPU_PYTHON) -m benchmarks.device.session --jobs $(GPU_JOBS)

# Registers, spills and blocks of the CUDA kernels, compiled for devices that are not there, against the kept table.
.PHONY: registers registers-write
registers: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.device.register_table

registers-write: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.device.register_table --write

# The documents as a site in site/. A warning, such as a link to nowhere, is an error; with --quiet it would not be.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	$(BIN)/python -m tests.project.offline site

# The experiments of Neal's book: about two hours on one core. A row that is done is not run again.
# make book ONLY="3.8 4.13" LENGTH=0.1 SEED=2 WORKERS=4; KEEP=1 writes the tables and pictures of docs/book.md.
.PHONY: book
book: $(VENV)/.installed-plots
	$(BIN)/python examples/book/book.py $(if $(ONLY),--only $(ONLY)) $(if $(LENGTH),--length $(LENGTH)) \
	    $(if $(SEED),--seed $(SEED)) $(if $(WORKERS),--workers $(WORKERS)) $(if $(KEEP),--keep)

# The short form of docs/benchmarks.md, on a machine where nothing else runs; a first call installs the peers too.
# Results are added to a file of lines of JSON.
RESULTS := .benchmarks/results.jsonl
DRAWS = $(BIN)/python benchmarks/draws.py --seconds 30 --out $(RESULTS)

bench: bench-steps bench-draws bench-overheads

# One after another, whatever make is told of jobs.
.NOTPARALLEL:

bench-steps: $(VENV)/.installed-dev peers
	@mkdir -p .benchmarks
	$(BIN)/python benchmarks/steps.py --out $(RESULTS)

bench-batches: $(VENV)/.installed-dev peers
	@mkdir -p .benchmarks
	$(BIN)/python benchmarks/batches.py --out $(RESULTS)

bench-draws: $(VENV)/.installed-dev peers
	@mkdir -p .benchmarks
	$(DRAWS) robot_arm --methods default gibbs:1000 gibbs:4000 nuts hmc-gibbs:1000
	$(DRAWS) boston --methods default gibbs:500 nuts
	$(DRAWS) led --methods default gibbs:100 nuts hmc-gibbs:100

# Fifteen tables by the default configuration and by scikit-learn: about 40 minutes.
bench-tables: $(VENV)/.installed-dev
	@mkdir -p .benchmarks
	$(PIP) --requirement benchmarks/requirements-tables.txt
	$(BIN)/python benchmarks/tables.py --out $(RESULTS)

# Eleven tables as a new user would bring them: minutes to the first prediction, about 25 minutes.
bench-new-user: $(VENV)/.installed-dev
	@mkdir -p .benchmarks
	$(PIP) --requirement benchmarks/requirements-tables.txt
	$(BIN)/python benchmarks/new_user.py --out $(RESULTS)

# Two tables of 20,000 rows by 20 columns, on two cores, with first predictions and the forecast: five minutes.
bench-large-tables: $(VENV)/.installed-dev
	@mkdir -p .benchmarks
	$(PIP) --requirement benchmarks/requirements-tables.txt
	$(BIN)/python benchmarks/large_tables.py --out $(RESULTS)

bench-overheads: $(VENV)/.installed-dev
	@mkdir -p .benchmarks
	$(BIN)/python benchmarks/overheads.py startup --out $(RESULTS)
	$(BIN)/python benchmarks/overheads.py shares --out $(RESULTS)
	$(BIN)/python benchmarks/overheads.py scaling --seconds 20 --out $(RESULTS)
	$(BIN)/python benchmarks/overheads.py updates --repeats 10 --out $(RESULTS)
	$(BIN)/python benchmarks/many_blocks.py --out $(RESULTS)

# What rayfbnn is compared with (JAX, NumPyro), in an environment of its own.
peers: .venv-peers/.installed

$(VENV)/bin/python:
	@$(PYTHON) -m venv $(VENV)

# A stamp older than these says that what is needed, or the compiled code, has changed. dev holds plots.
SOURCES := pyproject.toml CMakeLists.txt $(wildcard rayfbnn/kernels/shared/*.hpp rayfbnn/kernels/cpu/source/*.cpp rayfbnn/kernels/cpu/source/*.hpp rayfbnn/kernels/cpu/source/*/*.hpp rayfbnn/kernels/cpu/source/*/*.cpp)

$(VENV)/.installed-plots: $(SOURCES) | $(VENV)/bin/python
	@if [ -e $(VENV)/.installed-dev ] && [ -z "$$(find $(SOURCES) -newer $(VENV)/.installed-dev)" ]; then :; else \
	    echo "installing into $(VENV): a minute or two"; $(PIP) --editable '.[plots]'; fi
	@touch $@

$(VENV)/.installed-dev: $(SOURCES) | $(VENV)/bin/python
	@echo "installing into $(VENV): a minute or two"
	@$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/.installed-docs: $(SOURCES) | $(VENV)/bin/python
	@$(PIP) --editable '.[docs]'
	@touch $@

.venv-peers/.installed: benchmarks/requirements-peers.txt
	@echo "installing into .venv-peers: a minute or two"
	@$(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@
