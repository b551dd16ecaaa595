# Every target carries a line of help; `make` alone prints them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Bytecode is written of what is imported: of everything that is installed it takes minutes.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-gpu lint types docs golden bench job faults fuzz versions package clean

help: ## Print this help
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "installing torchledger and PyTorch into $(VENV): some minutes, once"
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) -e ".[dev]"
	@touch $@

$(VENV)/.plan: $(VENV)/.installed
	@echo "installing Triton, which writes kernels for a GPU that is not here: 188 MB, once"
	-$(PIP) -e ".[plan]"
	@touch $@

demo: $(VENV)/.plan ## Record a small GPT training script, show it, write its page, gpt.html, and price its step on H200s
	$(BIN)/torchledger run --profile --force -o gpt.ledger examples/train_gpt.py --steps 12
	$(BIN)/torchledger show gpt.ledger
	$(BIN)/torchledger report --force gpt.ledger -o gpt.html
	-$(BIN)/torchledger plan --device H200 examples/train_gpt.py --steps 12
	-$(BIN)/torchledger plan --device H200 --world 8 examples/train_gpt.py --steps 12
	@if [ -n "$$DISPLAY$$WAYLAND_DISPLAY" ]; then $(BIN)/python -m webbrowser "file://$(CURDIR)/gpt.html"; \
	  else echo "open gpt.html in a browser"; fi

test: $(VENV)/.dev ## Run the tests that need no GPU
	$(BIN)/python -m pytest -n 2 --dist loadscope -m "not gpu and not slow"

test-slow: $(VENV)/.dev $(VENV)/.plan ## Run the tests that take long
	$(BIN)/python -m pytest -n 2 --dist loadscope -m "slow and not gpu"

test-gpu: ## Run the tests that need an NVIDIA GPU, with the python3 at hand
	PYTHONPATH=src $(PYTHON) -m pytest tests/gpu

lint: $(VENV)/.dev ## Check style
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.dev ## Check types
	$(BIN)/mypy

docs: $(VENV)/.installed ## Build the documentation as a site, in docs/_build/html
	$(PIP) -e ".[docs]"
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

golden: $(VENV)/.dev ## Rewrite the golden files after a change of output that is meant
	$(BIN)/python -m pytest -n 2 --dist loadscope -m "not gpu" --rewrite-golden

bench: $(VENV)/.dev ## Run every benchmark that this machine can run, and say which it cannot; ONLY="NAME ..." runs some, or rooms
	$(BIN)/python -m benchmarks.run_all $(ONLY)

job: $(VENV)/.dev ## Jobs of four gloo processes, one for each strategy, with a rank that sleeps (half an hour)
	$(BIN)/python -m benchmarks.jobs.job_cpu -o build/bench/job_cpu.json

faults: $(VENV)/.dev ## Plant a fault into each function of ours that a compile calls; SECONDS=900 by default
	$(BIN)/python -m benchmarks.robustness.planted_faults --seconds $(or $(SECONDS),900) --output docs/results/faults.md

fuzz: $(VENV)/.dev ## Put 10,000 changed files of every kind through every command that reads them
	$(BIN)/python -m benchmarks.robustness.fuzz_files --keep -o docs/results/fuzz.md

versions: $(VENV)/.dev ## Try torch 2.9 to 2.14 on each Python at hand, from a wheel; writes the README's table (an hour)
	$(BIN)/python -m benchmarks.robustness.versions --readme

package: $(VENV)/.dev ## Build the wheel and the sdist into dist/, install each into a new environment, and run it there
	$(BIN)/python -m benchmarks.robustness.package

clean: ## Remove what the other targets made
	rm -rf $(VENV) docs/_build gpt.html .pytest_cache .mypy_cache .ruff_cache *.ledger *.trace.json.gz
