# make demo: a digits classifier trains on two workers from a notebook cell.
# make test: the default suite, under ten minutes. make test-slow, make soak: the rest; the browser
# tests leave pictures of the pages in out/browser, by theme.
# make wheel: the package as one file under dist, for hosts where it is to be brought.
# PYTHON=python3.12 picks another interpreter for .venv.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
TESTS ?= tests
# Most tests wait for processes: two at a time, whole files, halve the time on two cores.
ABREAST ?= 2

.PHONY: env demo test test-slow soak lint format bench notebooks docs wheel clean

env: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "notebook_accel needs Python 3.10 or newer; try: make $@ PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

demo: env
	$(RUN) notebooks/run_demo.py

test: env
	$(RUN) -m pytest -n $(ABREAST) --dist loadfile $(TESTS)

# The real engines and libraries that slow tests drive; the default suite does without them.
ENGINES := $(VENV)/.engines

$(ENGINES): $(READY)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev,deepspeed,docs,fp8,libraries,megatron]'
	@touch $@

test-slow: $(ENGINES)
	$(RUN) -m pytest -n $(ABREAST) --dist loadfile -m 'slow and not (soak or browser)' $(TESTS)
	$(RUN) -m pytest -m 'browser and slow' $(TESTS)

soak: env
	$(RUN) -m pytest -m soak $(TESTS)

notebooks: env
	$(RUN) -m pytest -m 'not (browser or soak)' tests/notebooks

# The documentation under out/site, with every notebook as a page with its outputs. For some of
# them only: make docs LESSONS='notebooks/1_beginner/01_quickstart.ipynb'
SITE ?= out/site

docs: $(ENGINES)
	$(RUN) -m mkdocs build --quiet --site-dir $(abspath $(SITE))
	$(RUN) notebooks/render.py $(SITE)/notebooks $(LESSONS)

lint: env
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: env
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

$(VENV)/.bench: $(READY)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	@touch $@

bench: $(VENV)/.bench $(ENGINES)
	$(RUN) benchmarks/launch.py
	$(RUN) benchmarks/step.py
	$(RUN) benchmarks/gather.py
	$(RUN) benchmarks/checkpoint.py
	$(RUN) benchmarks/strategies.py
	$(RUN) benchmarks/ui.py

# Needs pip, and an index for hatchling, which builds it; no virtual environment.
DIST ?= dist

wheel:
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir $(DIST) .
	@ls $(DIST)/notebook_accel-*.whl

clean:
	rm -rf $(VENV) build dist out
