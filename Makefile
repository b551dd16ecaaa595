# Every target carries a line of help; `make` alone prints them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-gpu lint types golden bench clean

help: ## Print this help
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(VENV)/.installed ## Record a small GPT training script and show its ledger
	$(BIN)/torchledger run --force -o gpt.ledger examples/train_gpt.py
	$(BIN)/torchledger show gpt.ledger

test: $(VENV)/.installed ## Run the tests that need no GPU
	$(BIN)/python -m pytest -n 2 -m "not gpu"

test-gpu: ## Run the tests that need an NVIDIA GPU, with the python3 at hand
	PYTHONPATH=src $(PYTHON) -m pytest tests/gpu

lint: $(VENV)/.installed ## Check style
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.installed ## Check types
	$(BIN)/mypy

golden: $(VENV)/.installed ## Rewrite the golden files after a change of output that is meant
	$(BIN)/python -m pytest -n 2 -m "not gpu" --rewrite-golden

bench: $(VENV)/.installed ## Redo the measurements of docs/results that need no GPU
	$(BIN)/python benchmarks/show_large.py -o docs/results/show_large.md
	$(BIN)/python benchmarks/dependencies.py -o docs/results/dependencies.md

clean: ## Remove what the other targets made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache *.ledger
