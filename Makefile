# make run    set up, then measure the capacity of multi-head attention on relational graphs
# make test   set up, then run the tests
# make lint   formatting, types, import layers
# make faults kills, full disks, hostile files; writes docs/reliability.md
# make bench  the engine against a one-model loop, as ratios in one run; then bench-user
# make bench-user  whole commands against plain loops over the same trials; writes docs/performance.md
# make torch-range  the engine and the plugins with the oldest and the newest torch that pyproject.toml allows
# make tutorial  runs the commands of the tutorial and the gallery; writes their output and figures, and README's sample
# make bench-scaling  what Ray workers gain and the driver costs; writes its section of docs/scaling.md
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BENCH := $(BIN)/pytest -o addopts= -o pythonpath=tests/bench -W default
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: run test torch-range faults lint bench bench-user bench-scaling tutorial clean

run: $(VENV)/.run-ready
	$(BIN)/capbench run --task rgr --arch mha

test: $(VENV)/.dev-ready
	OMP_NUM_THREADS=1 $(BIN)/pytest -n logical --dist worksteal -p no:benchmark

TORCH_RANGE := $(shell sed -n 's/.*"torch>=\([0-9.]*\),<\([0-9.]*\)".*/torch==\1 torch<\2/p' pyproject.toml)

torch-range: | $(VENV)/bin/python
	@for torch in $(foreach torch,$(TORCH_RANGE),'$(torch)'); do \
	  venv="$(VENV)-torch-$$(echo "$$torch" | tr -dc '0-9.')"; \
	  $(PYTHON) -m venv "$$venv" || exit 1; \
	  "$$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade -e '.[dev]' "$$torch" || exit 1; \
	  "$$venv/bin/python" -c 'import torch; print("torch", torch.__version__)'; \
	  OMP_NUM_THREADS=1 "$$venv/bin/pytest" -q -n logical -p no:benchmark tests/engine tests/plugins tests/tasks || exit 1; \
	done

lint: $(VENV)/.dev-ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

faults: $(VENV)/.dev-ready
	CAPBENCH_FAULTS=full OMP_NUM_THREADS=1 $(BIN)/pytest tests/faults tests/studies/verify/test_forgery.py

bench: $(VENV)/.dev-ready
	$(BENCH) tests/bench --write-page

bench-user: $(VENV)/.dev-ready
	$(BENCH) tests/bench/test_user_runs.py --write-page

tutorial: $(VENV)/.dev-ready
	$(BIN)/python tests/docs/console.py

bench-scaling: $(VENV)/.dev-ready
	$(BENCH) tests/bench/test_scaling.py --write-page

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "capbench needs Python 3.11 or newer; got $$($(PYTHON) --version). Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run-ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing capbench into $(VENV) ..."
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.dev-ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing capbench and its development tools into $(VENV) ..."
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.run-ready

clean:
	rm -rf $(VENV)
