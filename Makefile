BIN ?= .venv/bin/

.PHONY: lint test test-fast docs

lint:
	$(BIN)ruff check .
	$(BIN)ruff format --check .
	$(BIN)codespell $$(git ls-files | grep -v '^LICENSE$$')
	$(BIN)mypy
	$(BIN)lint-imports --no-logo --no-cache

test:
	$(BIN)python -m pytest

test-fast:
	$(BIN)python -m pytest -m 'fast and not slow'

docs:
	NO_MKDOCS_2_WARNING=1 $(BIN)mkdocs build --strict
	$(BIN)python docs/check_site.py site
	$(BIN)python docs/screenshots.py site
