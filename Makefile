# make demo: install, build the world, train, evaluate, write runs/demo/report.html
# make test: install and run the tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_OPTIONS ?=
# test files run in this many processes
JOBS ?= 2
# which results make study regenerates: a file of studies/ (docs/how-to/studies.md)
STUDY ?= world
# without bytecode every program that the tests start compiles the package anew
unexport PYTHONDONTWRITEBYTECODE
# UV=1 installs with uv (must be on the PATH) instead of pip: ten times faster from a cold start
ifdef UV
INSTALL = uv pip install --python $(BIN)/python
else
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check
endif

.PHONY: help install demo test lint format schema study docs bench clean
help:  ## Show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(VENV)/.stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) $(PIP_OPTIONS) -c constraints.txt -e '.[dev]'
	touch $@

install: $(VENV)/.stamp  ## Set up .venv with everything

demo: $(VENV)/.stamp  ## Train scst and dico on the built-in world, search, and write runs/demo/report.html
	$(BIN)/tellapart demo --output_dir runs/demo

test: $(VENV)/.stamp  ## Run the tests
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(TESTS)

lint: $(VENV)/.stamp  ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file benchmarks/mypy.ini benchmarks
	$(BIN)/lint-imports

format: $(VENV)/.stamp  ## Format the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schema: $(VENV)/.stamp  ## Write recipes/schema.json, which editors complete recipes by
	$(BIN)/python -m tellapart.recipe.json_schema recipes

# results without weights, which studies continue from; all passes each its own
KEPT = $(if $(filter-out all,$(STUDY)), --kept studies/kept/$(subst -,_,$(STUDY)).tar.xz)

study: $(VENV)/.stamp  ## Regenerate docs/results/world.md, or another with STUDY=name, for nlvr also DATA=folder; STUDY=all for all pages (world: about 40 minutes on 2 cores; sharp: about ten hours)
	$(BIN)/python studies/$(subst -,_,$(STUDY)).py --output_dir runs/study$(if $(DATA),/$(STUDY) --data $(DATA),$(KEPT)) --docs docs/results

docs: $(VENV)/.stamp  ## Build the site in build/site
	$(INSTALL) $(PIP_OPTIONS) -c constraints.txt -e '.[docs]'
	$(BIN)/python site/prepare.py
	$(BIN)/mkdocs build --strict

bench: $(VENV)/.stamp  ## Measure drawing and training steps against their peers, and write benchmarks/README.md; with CAPTIONS=file (COCO captions) the CIDEr-D reward, metrics and tokenizer, too
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/engine.py --docs benchmarks/README.md
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/scst_step.py --docs benchmarks/README.md
	$(foreach script,$(if $(CAPTIONS),cider_reward metrics tokenizer),OMP_NUM_THREADS=1 $(BIN)/python benchmarks/$(script).py $(CAPTIONS) --docs benchmarks/README.md &&) true

clean:  ## Remove the environment and the caches of the tools (not the runs)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
