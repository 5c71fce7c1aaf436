# Everything here works on a fresh clone with Python (>= 3.10), make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# A second, shorter run in which every annotated tensor shape is checked at run time (typer cannot read
# checked signatures, and wrong arguments meet the checker before our own messages).
SHAPES := --jaxtyping-packages=elliptica,beartype.beartype -m "not slow and not bad_input and not statistical" \
	--ignore=tests/cli/test_cli.py --ignore=tests/compare/test_command.py --ignore=tests/lab/demo/test_demo.py --ignore=tests/diagnostics/test_command.py tests

# One worker more than there are cores, because some tests wait for processes; one thread each.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(shell $(PYTHON) -c "import os; print(os.cpu_count() + 1)") --dist worksteal

# Waterbirds on frozen features, under a linear head and under one of two layers.
FEATURES := waterbirds-features,waterbirds-features-mlp

.PHONY: help demo test lint types bench docs results clean
help:            ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,docs,experiments,report,landscape,sklearn,compare,lightning,hf,index,ray]"
	touch $@

demo: $(INSTALLED)   ## train ERM, mixup and elliptic on two moons; write the pictures to demo/
	$(BIN)/elliptica demo --out demo

test: lint types $(INSTALLED)   ## lint, types, tests
	$(PYTEST)
	$(PYTEST) $(SHAPES)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

bench: $(INSTALLED)   ## the cost table of benchmarks/README.md (takes long; leave the machine alone)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	$(BIN)/python -m benchmarks

docs: $(INSTALLED)   ## the documentation site, in site/ (open site/index.html)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

results: $(INSTALLED)   ## the committed studies (needs ELLIPTICA_DATA)
	$(BIN)/python studies/sampling_modes.py
	$(BIN)/python studies/loss_landscape.py run
	$(BIN)/python studies/green_bridge.py run
	$(BIN)/elliptica run table3 --dataset airfoil,no2 --jobs 2 --out results/tables
	$(BIN)/elliptica run table5 --dataset skillcraft,crime --jobs 2 --out results/tables
	$(BIN)/elliptica run table3 --dataset airfoil-all,no2-all --methods erm,c-mixup,marginal --jobs 2 --out results/tables
	$(BIN)/elliptica run table5 --dataset skillcraft-train,crime-train --methods erm,c-mixup,marginal --jobs 2 --out results/tables
	$(BIN)/elliptica run table6 --dataset breastmnist --jobs 2 --out results/tables
	$(BIN)/elliptica run table6 --dataset breastmnist-per-batch --methods erm,mixup,mixupe,elliptic,marginal --jobs 2 --out results/tables
	$(BIN)/elliptica run table6 --dataset retinamnist,pathmnist_subset,pathmnist_subset-other-centre --seeds 3 --jobs 2 --out results/tables
	$(BIN)/elliptica run table9 --dataset breastmnist --jobs 2 --out results/tables
	$(BIN)/elliptica run table10 --dataset breastmnist --methods 'elliptic,elliptic by distance' --jobs 2 --out results/tables
	$(BIN)/elliptica run weighting --jobs 2 --out results/tables
	$(BIN)/elliptica tune table4 --dataset waterbirds-features --jobs 2 --out results/tables
	$(BIN)/elliptica tune table4 --dataset waterbirds-features-mlp --trials 6 --jobs 2 --out results/tables
	$(BIN)/elliptica run table4 --dataset $(FEATURES) --tuned --jobs 2 --out results/tables
	$(BIN)/elliptica tune table11 --dataset waterbirds-features --jobs 2 --out results/tables
	$(BIN)/elliptica tune table11 --dataset waterbirds-features-mlp --trials 6 --jobs 2 --out results/tables
	$(BIN)/elliptica run table11 --dataset $(FEATURES) --tuned --jobs 2 --out results/tables
	$(BIN)/elliptica run table7 --dataset $(FEATURES) --jobs 2 --out results/tables
	$(BIN)/elliptica run table8 --dataset features-noise0_0,features-noise0_1,features-noise0_5 --jobs 2 --out results/tables
	$(BIN)/elliptica run parts --match evaluations --jobs 2 --out results/tables
	$(BIN)/elliptica run parts-regression --match evaluations --jobs 2 --out results/tables
	$(BIN)/elliptica run shift --jobs 2 --out results/tables
	$(BIN)/elliptica run table1 --dataset cifar10-batch1 --seeds 3 --match evaluations --jobs 2 --out results/tables
	$(BIN)/python studies/tables.py
	$(BIN)/python studies/idea_pictures.py
	$(BIN)/python studies/compare_tables.py

clean:
	rm -rf $(VENV) demo site
