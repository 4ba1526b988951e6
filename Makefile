# make demo: set up, build a head, prove it, draw it.   make test: set up, lint, type-check, run every test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SMALL := $(VENV)/.installed-plot
LENS := .venv-lens

.PHONY: demo test test-all test-lens attack mutants bench reproduce lint types docs explorer site clean
.DEFAULT_GOAL := demo

$(STAMP): pyproject.toml constraints.txt
	@echo "setting up $(VENV) with everything that tests and site need; this takes some minutes, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch setuptools
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

# What the demo needs; for a clone in which nothing else was installed yet.
$(SMALL): pyproject.toml constraints.txt
	@echo "setting up $(VENV) with torch and matplotlib; this takes a minute or two, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch setuptools
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[plot]'
	touch $@

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(SMALL))
	mkdir -p out
	$(BIN)/attnc head gelu --domain -8 8 --eps 1e-6 --dtype float64 -o out/gelu.safetensors --report out/gelu.html --force

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

test: $(STAMP) lint types
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --durations=10

test-all: $(STAMP) lint types
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --durations=10 -m ''

# TransformerLens and nnsight bring 40 packages, so they have an environment of their own.
$(LENS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(LENS)
	$(LENS)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt torch setuptools
	$(LENS)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev,transformer-lens]' nnsight
	touch $@

test-lens: $(LENS)/.installed
	OMP_NUM_THREADS=1 $(LENS)/bin/pytest -q -m '' tests/exporters/test_transformer_lens.py tests/network/test_nnsight.py \
		tests/exporters/test_token_lens.py attnc/exporters/token_lens.py attnc/exporters/transformer_lens.py docs/transformer_lens.md tests/test_pages.py

attack: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/attack.py --minutes 30

mutants: $(STAMP)
	$(BIN)/python benchmarks/mutants.py

bench: $(STAMP)
	$(BIN)/python benchmarks/heads.py
	$(BIN)/python benchmarks/networks.py
	$(BIN)/python benchmarks/rates.py
	$(BIN)/python benchmarks/selector_rates.py
	$(BIN)/python benchmarks/incontext.py
	$(BIN)/python benchmarks/pretrained.py
	$(BIN)/python benchmarks/export.py
	$(BIN)/python benchmarks/huggingface.py
	$(BIN)/python benchmarks/huggingface_families.py
	$(BIN)/python benchmarks/tokens.py

reproduce: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/attnc reproduce all --seeds 3 -o out/experiments
	$(BIN)/python benchmarks/experiments.py out/experiments

docs: bench
	$(BIN)/attnc head gelu --domain -8 8 --eps 1e-6 --dtype float64 --plot docs/img/gelu.png --force
	$(BIN)/python benchmarks/network_pictures.py
	$(BIN)/python benchmarks/gallery.py
	$(BIN)/python benchmarks/zoo.py

# The numbers of docs/explorer.md, from MiniLM and others; about two minutes.
explorer: $(STAMP)
	$(BIN)/python benchmarks/explorer.py

# The site in out/site, which opens from files; then every page is checked, in Chromium too where it is installed.
site: $(STAMP)
	$(BIN)/sphinx-build -q -a -W --keep-going -d out/site-trees -b html docs out/site
	$(BIN)/python docs/check.py out/site

clean:
	rm -rf $(VENV) $(LENS) out build attnc.egg-info
