# make setup installs everything into .venv and fetches the default model; demo and test call it first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# most modules of what is installed are never imported; those that are get compiled then, where that may be kept
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PIP += $(if $(PYTHONDONTWRITEBYTECODE),,--no-compile)

.PHONY: setup demo test lint types docs

setup: $(STAMP)
	$(BIN)/mirrorsd models fetch smollm2-135m-instruct

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable ".[dev]"
	touch $@

demo: setup
	$(BIN)/mirrorsd demo

test: setup
	$(BIN)/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder --max-worker-restart=0

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy --num-workers=2

docs: $(STAMP)
	$(PIP) --editable ".[docs]"
	$(BIN)/python -m mkdocs build --strict
