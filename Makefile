# Each target makes .venv by itself and reuses it until pyproject.toml or constraints.txt changes.
PYTHON ?= python3
EXTRAS := train,broker,tables,dev
BIN := .venv/bin
# Which tests: all of them, or TESTS=tests/protocol for a part.
TESTS ?= tests
INSTALLED := .venv/.installed

.DELETE_ON_ERROR:
.PHONY: demo test test-slow test-thorough check clean

# The whole way on real data: train, export, sign, personalise, exchange prototypes, compare.
demo: $(INSTALLED)
	$(BIN)/fedtailor demo

# The fast tests, on two processes.
test: $(INSTALLED)
	$(BIN)/python -m pytest $(TESTS) -m "not slow" -n 2 --dist loadfile

# The long tests, on two processes; those that measure seconds then run one at a time.
test-slow: $(INSTALLED)
	$(BIN)/python -m pytest $(TESTS) -m "slow and not thorough and not alone" -n 2 --dist loadfile
	$(BIN)/python -m pytest $(TESTS) -m "alone and not thorough"

# Every layer, loss, network and method where the other sets take a few: before a release, or after a change of the exporter.
test-thorough: $(INSTALLED)
	$(BIN)/python -m pytest $(TESTS) -m thorough -n 2 --dist loadfile

# Lint, format and types.
check: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# Leaves the sources alone; run folders and bundles are yours to delete.
clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
	    || { echo "fedtailor needs Python 3.10 to 3.13; name one: make PYTHON=python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv .venv || { echo "no venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --disable-pip-version-check --editable ".[$(EXTRAS)]" --constraint constraints.txt
	@touch $@
