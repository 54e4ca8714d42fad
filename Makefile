# `make demo` and `make test` are all a newcomer needs: each first makes the environment it runs in.
# Another interpreter for a new .venv: `make test PYTHON=python3.13`.
PYTHON ?= python3
BIN := .venv/bin
CODE := src tests $(wildcard bench examples)

# What pip alone does not bring: a GPU, a browser.
BROWSER := $(wildcard /usr/bin/chromium)
EVERYWHERE := not gpu$(if $(BROWSER),, and not browser)
TORCH_FREE := not gpu and not monarch and not browser and not torch and not gloo and not slow

.PHONY: test test-fast lint format demo clean
.DEFAULT_GOAL := test

test: lint
	$(BIN)/pytest -m '$(EVERYWHERE)'
	@test -n '$(BROWSER)' || echo 'Not run: tests marked browser; they need /usr/bin/chromium (apt-get install chromium).'

test-fast: .venv/.ok
	$(BIN)/pytest -m '$(TORCH_FREE)'

lint: .venv/.ok
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports --no-logo

format: .venv/.ok
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

demo: .venv/.ok
	$(BIN)/fullbore train --schedule zbv --ranks 2 --layers 4 --steps 180 --check

clean:
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

# A half-made .venv has no pip and is made anew; one of an old Python is left for its owner to remove.
OLD := import sys; sys.version_info >= (3, 11) or sys.exit( \
	"fullbore needs Python 3.11 or newer; %s is Python %d.%d. %s" % \
	((sys.executable,) + tuple(sys.version_info[:2]) + (sys.argv[1],)))

.venv/.ok: pyproject.toml constraints.txt
	@test -x $(BIN)/pip || $(PYTHON) -c '$(OLD)' 'Name a newer one: make PYTHON=python3.13'
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	@$(BIN)/python -c '$(OLD)' 'Run `make clean`, then make PYTHON=python3.13'
	$(BIN)/pip install -qq -e '.[dev]' -c constraints.txt
	@touch $@
