# make sweep   install if needed, then run the default sweep     (ARGS="search_spaces/bytes.yaml --dry-run" to choose)
# make test    install if needed, then lint, types and the suite (ARGS="-k batch" to choose)
# make bench   the benchmarks, side by side with what a user would pick instead (benchmarks/gpu_check.py needs a GPU)
# make ui      the MLflow UI of the default tracking database, on this machine only
# make lint    only the linters

PYTHON ?= python3
VENV ?= .venv
PORT ?= 5000
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: sweep test bench ui lint install clean
.DEFAULT_GOAL := sweep

install: $(INSTALLED)

# Touched only after a whole install, so that an interrupted one starts over.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name it: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	touch $@

sweep: $(INSTALLED)
	$(BIN)/python -m orchestrator.sweep $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --line-length 120 .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

bench: $(INSTALLED)
	@for benchmark in $(filter-out benchmarks/gpu_check.py,$(sort $(wildcard benchmarks/*.py))); do \
		echo "== $$benchmark"; $(BIN)/python $$benchmark $(ARGS) || exit $$?; \
	done

ui: $(INSTALLED)
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false $(BIN)/mlflow ui --backend-store-uri 'sqlite:///$(CURDIR)/mlflow.db' --host 127.0.0.1 --port $(PORT)

clean:
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
