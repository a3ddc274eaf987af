# Every target sets itself up in .venv from a bare Python 3.11 or 3.12.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# A pyenv shim may exist without its version, so each candidate has to run.
PYTHON ?= $(shell for p in python3.12 python3.11 python3; do $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
STAMP := .venv/.set-up

.PHONY: help setup demo test check check-hlog-js e2e-vllm e2e-vllm-full bench bench-peers-setup docs clean

help: ## this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(STAMP) ## the virtual environment with the package and the dev tools
$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 to 3.13 found on PATH; install one or say make PYTHON=/path/to/python3.12" >&2; exit 2; }
	@echo "setting up .venv with $$($(PYTHON) --version) (about a minute)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@

demo: $(STAMP) ## the main job against the simulated server: run, merge, gate, report (about 3 minutes)
	@$(BIN)/loadtest demo; code=$$?; case $$code in \
	  98|99) echo "make demo: gate exit code $$code, as it must be: a simulated run never passes" ;; \
	  0) echo "make demo: the gate passed a simulated run; that is a defect" >&2; exit 1 ;; \
	  *) exit $$code ;; esac

test: $(STAMP) ## the tests
	$(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile

check: $(STAMP) ## ruff, format, mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

coverage: $(STAMP) ## the tests with branch coverage
	$(BIN)/pytest --cov --cov-report=term

e2e-vllm: $(STAMP) ## real vLLM servers on the CPU: all five methods, gated (about 15 minutes, 4 GB of disk)
	tools/vllm_cpu/setup.sh
	tools/vllm_cpu/e2e.sh plans/vllm-cpu.toml

e2e-vllm-full: $(STAMP) ## the full CPU sweep: all five methods, gamma 2 and 4
	tools/vllm_cpu/setup.sh
	tools/vllm_cpu/e2e.sh plans/vllm-cpu-full.toml

bench: $(STAMP) ## ours and other load tools on one schedule, memory, merge (half an hour; needs gcc; BENCH= options)
	$(BIN)/python benchmarks/bench.py $(BENCH)

bench-peers-setup: $(STAMP) ## the other load tools for `make bench`, pinned (about 4 GB, 5 minutes)
	$(BIN)/python benchmarks/peers_setup.py

check-hlog-js: $(STAMP) ## our histogram logs read by hdr-histogram-js (needs node and npm)
	$(BIN)/python tools/hlog_js_check/check.py

clean: ## what the targets made, but not the runs under reports/
	rm -rf .venv .vllm-lab benchmarks/.venvs benchmarks/bin .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
