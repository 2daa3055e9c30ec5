# Everything works on a machine that has Python 3.11 and this folder: each target prepares .venv first.

PYTHON ?= python3
BIN := .venv/bin
INSTALL = $(BIN)/pip --quiet --disable-pip-version-check install --no-compile --constraint constraints.txt
STAMP := .venv/.ready
DOCS_STAMP := .venv/.docs-ready

LANES := processes long faults ray quick values learning
# each is a pytest of its own (tests/conftest.py says which tests are in it); three at a time keep two cores busy, as
# much of them is waiting; the longest begin

unexport PYTHONDONTWRITEBYTECODE
# else each of the many processes of the tests compiles all of Pappus

BROWSERS := chromium chromium-browser google-chrome google-chrome-stable

.PHONY: setup browser demo test test-fast check docs docs-serve clean $(LANES:%=test-%)

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@# torch alone first: a constraint on it must not be solved together with packages that would pull another build
	$(INSTALL) torch setuptools
	$(INSTALL) --no-build-isolation --editable ".[atari,data,envpool,export,grpc,mujoco,ray,replay,sweep,video,dev]"
	@# pip would compile with one core; a few packages carry files for other Pythons, which do not compile
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	@touch $(STAMP)

# tests/page drives a browser: root gets Debian's here; who cannot have it goes without, and these tests are skipped.
# No lane depends on it: make would begin the longest one last
browser:
	@which $(BROWSERS) | grep -q . || { test "$$(id -u)" = 0 && apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
	  apt-get -qq install --yes --no-install-recommends chromium >/dev/null; } \
	  || { echo "no browser: tests/page needs chromium in PATH, which root gets with apt-get from Debian" >&2; test "$$CI" != true; }

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: $(STAMP) browser
	@$(MAKE) --no-print-directory --jobs 3 --keep-going --output-sync=target $(LANES:%=test-%)

$(LANES:%=test-%): test-%: $(STAMP)
	$(BIN)/python -m pytest -m $*

test-fast: $(STAMP)
	$(BIN)/python -m pytest -m quick --numprocesses 2

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(DOCS_STAMP): $(STAMP)
	$(INSTALL) --no-build-isolation --editable ".[docs]"
	@touch $(DOCS_STAMP)

docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --strict

clean:
	rm -rf .venv build dist site *.egg-info
