# Two commands from nothing: `make demo` and `make test`. Both set up .venv once and re-install only
# when pyproject.toml or constraints.txt change.
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null && echo "$$p" && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: demo test lint format clean

demo: .venv/.user
	$(BIN)/cll demo

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --cov --cov-report=term:skip-covered

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/.user: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or 3.12 is needed and was not found; install one, or name it: make PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) setuptools wheel
	$(PIP) --no-build-isolation -e '.[cli]'
	@touch $@

.venv/.dev: .venv/.user
	$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .coverage*
