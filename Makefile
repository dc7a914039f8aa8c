# `make book` and `make test` each work as the first command in a fresh clone: they make .venv themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: book small beside device mutants pages pdf wheel installs test check serve lint format lock repository clean environment
.DEFAULT_GOAL := book

# The whole book, or with ONLY=theory/transport a draft of some chapters; JOBS=2 chapters at once.
BUILDER := PYTHONPATH=book $(BIN)/python -m builder

book: $(READY)
	$(BUILDER) book $(if $(ONLY),--only '$(ONLY)') $(if $(JOBS),--jobs $(JOBS))

# Every experiment page at small parameters, trained here; after `make book`.
small: $(READY)
	$(BUILDER) small

# Each at two unusual settings of its own (book/beside.toml), after `make book`; PAGES=experiments/pairs for one.
beside: $(READY)
	$(BUILDER) beside $(PAGES)

# Their training and drawing once more, on a simulated device: what mixes devices fails.
device: $(READY)
	$(BUILDER) small --names | xargs -n 1 -P 2 sh -c \
	  'PYTHONPATH=book $(BIN)/python -m tests.simulated_device $$0 -p small True || exit 255'

# The built book as two files, core and appendices, printed by Chromium into _build/html
pdf: $(READY)
	$(BUILDER) pdf

# The library and what its pages import, for other environments: _build/hnlib-….whl
wheel: $(READY)
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir _build .

# The install lines of the README, one after the other in an environment of its own, with the versions of this one.
installs: wheel
	rm -rf _build/installed && $(PYTHON) -m venv _build/installed
	$(BIN)/python -m pip freeze --exclude-editable > _build/installed/versions.txt
	for extra in "" "[training]" "[notebooks]"; do \
	  _build/installed/bin/python -m pip --quiet --disable-pip-version-check install --constraint _build/installed/versions.txt \
	    "$$(ls -t $(CURDIR)/_build/hnlib-*.whl | head -1)$$extra" \
	  && (cd _build/installed && bin/python -c "from hnlib import methods; methods.build('hcl')") || exit 1; done
	_build/installed/bin/hnlib run --help > /dev/null

# Tests run on all cores; a file's tests stay in one process, because they may share what is slow to make. Files
# keep their order: by default those with few tests, which are the slow ones, would be last, on one core.
# What needs the built book, or executes its pages, is left to `make pages`.
PYTEST := $(BIN)/python -m pytest -n logical --dist loadfile --no-loadscope-reorder --ignore=tests/pages

test: $(READY)
	$(PYTEST)

# The built book, after `make book`: its pages in a browser, and that no recorded number has moved, in texts or elsewhere.
pages: $(READY)
	HNLIB_BROWSER=required $(BIN)/python -m pytest -n logical tests/pages

# The quick tests: nothing that starts processes, notebooks, browsers or compilers.
check: $(READY)
	$(PYTEST) -m "not slow"

# The mutants of tests/mutants.toml, each put to the tests that must notice it; WORDS=training for some of them.
mutants: $(READY)
	$(BIN)/python tests/mutants.py $(WORDS)

serve: book
	@echo "http://localhost:8000 (Ctrl-C stops)"
	$(BIN)/python -m http.server 8000 --bind localhost --directory _build/html

# Nothing is changed: style, form (of the chapters' cells too), the imports' direction, types, the pins.
# Of these one is left out on purpose: see hydra-core in pyproject.toml. Any other line that pip prints is an error.
LEFT_OUT := lightly [0-9.]* requires hydra-core, which is not installed\.
lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/format_cells.py --check
	PYTHONPATH=book $(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	! $(BIN)/python -m pip check 2>&1 | grep -vx -e "$(LEFT_OUT)" -e "No broken requirements found\."

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python .ci/format_cells.py

# Writes requirements.txt anew: pins that still fit stay; `make lock NEWER=--upgrade` takes the newest of all,
# `make lock NEWER="--upgrade-package ray"` of one. (uv asks PyPI, whatever pip is configured to do.)
lock: $(READY)
	$(BIN)/uv pip compile --quiet $(NEWER) --constraints requirements-torch.txt pyproject.toml

# The address of the repository, in every file that names it: make repository URL=https://github.com/you/hard-negatives
# In the README the lines that wait for it follow: a badge, what to install without a checkout, what to clone.
BADGE = [![book]($(URL)/actions/workflows/book.yml/badge.svg)]($(URL)/actions/workflows/book.yml)
repository:
	@[ -n "$(URL)" ] || { echo "Name the address: make repository URL=https://github.com/you/hard-negatives"; exit 1; }
	old=$$(sed -n 's/^Repository = "\(.*\)"$$/\1/p' pyproject.toml); for file in pyproject.toml README.md CITATION.cff; do \
	  sed -e "s|$$old|$(URL)|g" -e "s|^# in a checkout of this repository$$|git clone $(URL) hard-negatives \&\& cd hard-negatives|" \
	    -e "s|^<!-- badges -->$$|$(BADGE)|" \
	    -e "s|'\./hnlib-[0-9.]*-py3-none-any\.whl\(\[[a-z]*\]\)\{0,1\}'|'hnlib\1 @ git+$(URL)'|" \
	    $$file > $$file.new && cat $$file.new > $$file && rm $$file.new || exit 1; done

clean:
	rm -rf _build .pytest_cache .ruff_cache .hypothesis

environment: $(READY)

# Four steps: uv, which installs in a tenth of pip's time; the lock, whole and checked by its hashes; torch in the
# build that pip's configuration offers this machine; the checkout itself, with the locked setuptools. uv does not
# read pip's configuration, so pip installs the lock where only that names a reachable index. The stamp is
# written last, so an installation that failed half-way is tried again.
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install
LOCK := --require-hashes --no-deps --only-binary :all: -r requirements.txt
$(READY): requirements.txt requirements-torch.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
	       "Name another one: make PYTHON=/path/to/python3.12"; exit 1; }
	@rm -f $@
	$(PYTHON) -m venv $(VENV)
	sed -n '/^uv==/,/# via/p' requirements.txt > $(VENV)/uv.txt
	$(PIP) --require-hashes --only-binary :all: -r $(VENV)/uv.txt
	$(BIN)/uv --quiet --no-config pip install --python $(BIN)/python $(LOCK) || $(PIP) $(LOCK)
	$(PIP) --no-compile --no-warn-conflicts -r requirements-torch.txt
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@
