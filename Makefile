# Everything a person or a machine runs here. `make` lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash
export UV_CACHE_DIR ?= $(CURDIR)/.cache/uv
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help venv test lint

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

venv: .venv/.stamp  ## make the virtual environment

.venv/.stamp: pyproject.toml
	@command -v uv >/dev/null || $(PYTHON) -m pip install --quiet --user uv || $(PYTHON) -m pip install --quiet --user --break-system-packages uv
	@export PATH="$$HOME/.local/bin:$$PATH"; \
	 uv venv --quiet --allow-existing --python $(PYTHON) .venv && uv pip install --quiet --python $(BIN)/python -e '.[test]'
	@touch $@

test: .venv/.stamp  ## all tests
	$(BIN)/pytest

lint: .venv/.stamp  ## ruff and mypy --strict
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
