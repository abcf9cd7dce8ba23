# make setup installs everything into .venv and fetches the embedded model; demo and test call it first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test lint types docs

setup: $(STAMP)
	$(BIN)/mirrorsd models fetch smollm2-135m-instruct

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: setup
	$(BIN)/mirrorsd demo

test: setup
	$(BIN)/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder --max-worker-restart=0

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	$(BIN)/python -m mkdocs build --strict
