# Needs Python >= 3.10 (on Debian also python3-venv), make and git; everything else is put into .venv.
PYTHON ?= python3
PROFILE ?= laptop
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TRANSFORMERS := .venv-transformers
HF := .venv-hf
TRITON := .venv-triton
CROSSINGS := .venv-crossings
SITE := .venv-site
WHEEL := .venv-wheel
PIP := -m pip install --quiet --disable-pip-version-check

.PHONY: help help-tests install reproduce test test-slow test-all test-numerics test-shapes test-pythons test-avx2 test-isa test-hf test-hf-all \
	test-triton test-crossings lint format audit bench docs dist clean

help:
	@echo "make install   everything into .venv; then: source .venv/bin/activate"
	@echo "make reproduce [PROFILE=smoke|laptop|night|gpu_short|gpu|paper] [ARGS='--plan | --only SECTIONS | data=file data.path=FILE']   reproduce the paper"
	@echo "make bench [ARGS='--only CASES | --rounds N | --against CHECKOUT | --original FOLDER']   measure speed, in turns"
	@echo "make test   what a change needs; make help-tests lists all suites"
	@echo "make lint | format | clean"
	@echo "make audit   known vulnerabilities of the pinned versions, from PyPI"
	@echo "make docs | dist   the documentation as a site in site/; sdist and wheel in dist/, the wheel tested"

help-tests:
	@echo "make test           every test without the marker slow or full: 3 minutes on two idle cores"
	@echo "make test-slow      killed runs, several processes, complete commands, the documentation's examples: 6 minutes"
	@echo "make test-numerics  the tests whose numbers another processor or Python could change: 1 minute"
	@echo "make test-shapes    tests/model, with every annotated shape checked: 1 minute"
	@echo "make test-all       every test, including all combinations of options and long runs: 17 minutes"
	@echo "make test-avx2      test-numerics with AVX2 instructions only: 1 minute"
	@echo "make test-isa       test-avx2, then test-numerics with SSE4.2 instructions only: 4 minutes"
	@echo "make test-pythons [SUITE=test] [PYTHONS='python3.12 …']   a suite with each Python of this machine: 3 minutes each"
	@echo "make test-hf | test-triton   optional libraries, in separate environments: 1 minute; 3 minutes"
	@echo "make test-hf-all    every causal model type in transformers: 10 minutes"
	@echo "make test-crossings   other loggers, launchers and papermill, in a separate environment"

# Made again when its inputs change. torch is installed first, so that no other package chooses its build.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python >= 3.10 is needed, this is " + sys.version.split()[0]) if sys.version_info < (3, 10) else None'
	$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python $(PIP) $$(grep '^torch==' constraints.txt)
	$(BIN)/python $(PIP) --constraint constraints.txt --editable '.[dev]'
	touch $@

install: $(READY)
	@echo "ready: source $(BIN)/activate, then txl train"

reproduce: $(READY)
	$(BIN)/python -m experiments.reproduce --profile $(PROFILE) $(ARGS)

PYTEST := -m pytest -n 2 --dist worksteal
NUMERICS := -m 'numerics and not slow and not full'

test: $(READY)
	$(BIN)/python $(PYTEST)

test-slow: $(READY)
	$(BIN)/python $(PYTEST) -m 'slow and not full'

test-all: $(READY)
	$(BIN)/python $(PYTEST) -m ''

test-numerics: $(READY)
	$(BIN)/python $(PYTEST) $(NUMERICS)

test-shapes: $(READY)
	$(BIN)/python $(PYTEST) --shapes tests/model

# Every Python of this machine; a new torch may be a download of 3 GB for each.
PYTHONS ?= python3.10 python3.11 python3.12 python3.13 python3.14 /usr/bin/python3
SUITE ?= test

test-pythons:
	@tests/pythons.sh $(SUITE) $(PYTHONS)

# The processors of others: an ordinary laptop (AVX2), and one without AVX.
AVX2 := ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2
SSE4 := ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41

test-avx2: $(READY)
	$(AVX2) $(BIN)/python $(PYTEST) $(NUMERICS)

test-isa: test-avx2
	$(SSE4) $(BIN)/python $(PYTEST) $(NUMERICS)

# The tests of the extra hf, in its own environment: torchmetrics imports transformers wherever it is installed, so in
# .venv every command would start seconds later.
test-hf: $(HF)/.ready
	$(HF)/bin/python -m pytest -m 'not full' tests/recl/test_huggingface.py tests/recl/test_one_pass.py \
		tests/recl/test_packaged_models.py tests/docs/test_commands.py

# Every causal class of transformers, read by `hf:`: nightly, about a quarter of an hour.
test-hf-all: $(HF)/.ready
	$(HF)/bin/python -m pytest -m '' tests/recl/test_all_classes.py

# The Triton kernel without a GPU, in Triton's interpreter. torch for the CPU comes without Triton; this is the version that torch 2.13 for CUDA asks for.
test-triton: $(TRITON)/.ready
	TRITON_INTERPRET=1 $(TRITON)/bin/python $(PYTEST) -m '' tests/kernels

# Loggers, launchers and papermill, which no extra brings.
test-crossings: $(CROSSINGS)/.ready
	$(CROSSINGS)/bin/python -m pytest -m 'not full' tests/crossings

# What the oldest supported Python lacks: names and arguments; mypy finds methods, ruff syntax. `long`, of Python 2, is also a
# method of tensors. Files that mix it with Python 3 would be left out without --ignore.
OLDEST := --target=3.10- --violations --quiet --no-tips --ignore --exclude long
SOURCES := txl_lightning hydra_plugins experiments benchmarks sweeps examples tests docs

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/vermin $(OLDEST) $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Hugging Face's last TransfoXL needs older libraries than ours: an environment of its own over the same torch.
$(TRANSFORMERS)/.ready: $(READY)
	$(PYTHON) -m venv --clear $(TRANSFORMERS)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_paths()["purelib"])' > $$($(TRANSFORMERS)/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/base.pth
	$(TRANSFORMERS)/bin/python $(PIP) --no-deps 'transformers==4.37.2' 'tokenizers==0.15.2' 'huggingface-hub==0.36.2' 'regex==2026.11.15' \
		'x-transformers==2.31.10' 'torch-einops-utils==0.2.0' 'einops==0.8.2' 'einx==0.4.3' 'frozendict==2.5.1' 'loguru==0.7.3'
	touch $@

$(HF)/.ready: $(READY)
	$(PYTHON) -m venv --clear $(HF)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_paths()["purelib"])' > $$($(HF)/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/base.pth
	$(HF)/bin/python $(PIP) --no-deps --constraint constraints.txt transformers tokenizers regex typer shellingham annotated-doc
	touch $@

$(TRITON)/.ready: $(READY)
	$(PYTHON) -m venv --clear $(TRITON)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_paths()["purelib"])' > $$($(TRITON)/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/base.pth
	$(TRITON)/bin/python $(PIP) --no-deps 'triton==3.7.1'
	touch $@

$(CROSSINGS)/.ready: $(READY)
	$(PYTHON) -m venv --clear $(CROSSINGS)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_paths()["purelib"])' > $$($(CROSSINGS)/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/base.pth
	$(CROSSINGS)/bin/python $(PIP) --constraint constraints.txt mlflow-skinny==3.17.2 alembic sqlalchemy flask \
		hydra-joblib-launcher==1.2.0 papermill==2.7.0 ipykernel==7.4.0 tensorboardx==2.6.5
	$(CROSSINGS)/bin/python $(PIP) --constraint constraints.txt lm-eval==0.4.13
	touch $@

# Known vulnerabilities of the pinned versions, from PyPI. Not in the tests: it needs the network.
AUDIT := .venv-audit

audit:
	@$(PYTHON) -c 'import urllib.request; urllib.request.urlopen("https://pypi.org/pypi/pip/json", timeout=20)' 2> /dev/null || \
		{ echo "make audit: needs https://pypi.org, which cannot be reached"; exit 1; }
	$(PYTHON) -m venv --clear $(AUDIT)
	$(AUDIT)/bin/python $(PIP) pip-audit
	$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

bench: $(TRANSFORMERS)/.ready
	$(BIN)/python -m benchmarks.bench $(ARGS)

docs: $(SITE)/.ready
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict --quiet
	@echo site/index.html

# With the Python of .venv where it is there. pip names packages that do not fit together only without --quiet.
SITE_PIP = $(SITE)/bin/python $(1) --constraint constraints.txt mkdocs-material

$(SITE)/.ready: constraints.txt
	if [ -x $(BIN)/python ]; then $(BIN)/python -m venv --clear $(SITE); else $(PYTHON) -m venv --clear $(SITE); fi
	$(call SITE_PIP,$(PIP)) || $(call SITE_PIP,$(filter-out --quiet,$(PIP)))
	touch $@

# The wheel is built from the sdist. Its environment has nothing else, and the commands run outside the checkout. The last
# environment has no framework: the example of docs/effective-context.md needs none.
EXAMPLE := from tests.docs.pages import ROOT, blocks; \
	print(next(code for code in blocks(ROOT / "docs/effective-context.md", "python") if "txl_lightning.recl" in code))

dist:
	rm -rf dist
	$(PYTHON) -m venv --clear $(WHEEL)
	$(WHEEL)/bin/python $(PIP) --constraint constraints.txt build
	$(WHEEL)/bin/python -m build
	$(PYTHON) -m venv --clear $(WHEEL)
	$(WHEEL)/bin/python $(PIP) $$(grep '^torch==' constraints.txt)
	$(WHEEL)/bin/python $(PIP) --constraint constraints.txt dist/*.whl
	env -u PYTHONPATH PATH="$(CURDIR)/$(WHEEL)/bin:$$PATH" $(WHEEL)/bin/python tests/wheel.py
	$(PYTHON) -m venv --clear $(WHEEL)
	$(WHEEL)/bin/python $(PIP) $$(grep '^torch==' constraints.txt)
	$(WHEEL)/bin/python $(PIP) --constraint constraints.txt numpy tqdm jaxtyping
	$(WHEEL)/bin/python $(PIP) --no-deps dist/*.whl
	folder="$$(mktemp -d)" && $(PYTHON) -c '$(EXAMPLE)' > "$$folder/example.py" && \
	cd "$$folder" && env -u PYTHONPATH $(CURDIR)/$(WHEEL)/bin/python example.py
	ls -l dist

clean:
	rm -rf $(VENV) .venv-3.* $(TRANSFORMERS) $(HF) $(TRITON) $(CROSSINGS) $(SITE) $(WHEEL) $(AUDIT) site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
