# Every target sets up .venv when needed, from nothing but Python 3.11 or 3.12. Packages are installed again only when
# pyproject.toml or constraints.txt change.
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null && echo "$$p" && break; done)
BIN := .venv/bin
# without --no-compile, pip compiles all modules of all packages, most of which are never imported
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile -c constraints.txt
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
unexport PYTHONDONTWRITEBYTECODE  # where it is set, all tests would be compiled again by every process

.PHONY: demo test test-fast coverage lint format docs wheel clean

demo: .venv/.user  ## train on handwritten digits, about a minute
	$(BIN)/cll demo

test: .venv/.dev  ## everything that CI runs; mypy, which has one process, beside the first tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@log=$$(mktemp); $(BIN)/mypy >"$$log" 2>&1 & mypy=$$!; $(PYTEST); tests=$$?; \
	wait $$mypy; types=$$?; cat "$$log"; rm -f "$$log"; test $$tests -eq 0 -a $$types -eq 0

test-fast: .venv/.dev  ## the tests that take less than about 2 seconds each
	$(PYTEST) -m "not slow"

coverage: .venv/.dev
	$(PYTEST) --cov --cov-report=term:skip-covered

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.docs  ## build the documentation in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: .venv/.user  ## build the package in dist/
	rm -rf build dist
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

.venv/.base: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or 3.12 was not found; install one, or pass it: make PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) setuptools wheel
	@touch $@

.venv/.user: .venv/.base
	$(PIP) --no-build-isolation -e '.[cli]'
	@touch $@

.venv/.dev: .venv/.base
	$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@

.venv/.docs: .venv/.base
	$(PIP) --no-build-isolation -e '.[docs]'
	@touch $@

clean:
	rm -rf .venv build dist site .pytest_cache .mypy_cache .ruff_cache .coverage* src/*.egg-info
