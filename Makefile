# Commands of the checkout. Each makes the virtual environment that it needs; `make` alone lists them.
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check

# One stamp per set of dependencies, so that `make demo` never waits for the tools of the developers.
CORE := $(VENV)/.installed-core
DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types slow bench wheel clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(CORE) ## Find the culprit of a real bug in a real PyPI release
	@$(VENV)/bin/xlocal demo

test: $(DEV) ## Run the tests that need no network (five minutes on two cores)
	$(PY) -m pytest -n auto

check: lint types test ## Run all that a change must pass: format, lint, types, tests

lint: $(DEV) ## Check format and style
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

# mypy cannot follow setuptools' folder mapping, so it checks what users get: the installed package.
types: $(DEV) ## Check types of the package as installed, and of the experiments
	@rm -rf build && mkdir -p build/types  # setuptools would reuse what an older build left
	$(PIP) --no-deps --target build/types .
	cd build/types && MYPYPATH=. $(CURDIR)/$(VENV)/bin/mypy --config-file $(CURDIR)/pyproject.toml -p xlocal
	MYPYPATH=build/types:experiments $(VENV)/bin/mypy --config-file pyproject.toml experiments/*.py

slow: $(DEV) ## Run the tests marked slow: real releases from PyPI, every interpreter found
	$(PY) -m pytest -n auto -m slow

bench: $(DEV) ## Print the quick form of every benchmark
	@for program in benchmarks/*.py; do echo "== $$program --quick" && $(PY) $$program --quick || exit 1; done

wheel: $(DEV) ## Build the wheel into dist/
	@rm -rf build dist && $(PY) -m build --wheel --outdir dist .

clean: ## Remove what these commands made, the virtual environment included
	rm -rf build dist $(VENV) *.egg-info

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "xlocal needs Python 3.11 or newer, but '$(PYTHON)' is older or missing: make PYTHON=/path/to/python3.11 ..." >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)

$(CORE): pyproject.toml | $(PY)
	$(PIP) --editable .
	@touch $@

$(DEV): pyproject.toml | $(PY)
	$(PIP) --editable '.[dev]'
	@touch $@ $(CORE)
