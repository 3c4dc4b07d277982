# Every habit of this repository is a target here. `make` lists them.
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.ready
HEAVY := .venv/.ready-heavy
DOCS := .venv/.ready-docs
TORCHTITAN := .venv-torchtitan/.ready
FOCUS := .venv-focus/.ready
KUBEFLOW := .venv-kubeflow/.ready
FUZZ := .venv-fuzz/.ready
SECONDS ?= 60
DEMO ?= pyrometer-demo
DEPLOY ?= deploy/base
CORES ?= --numprocesses auto --maxprocesses 8 --dist worksteal
# One more than there are cores: many of the heavy tests wait for servers and for other processes.
MORE_CORES ?= --numprocesses $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --maxprocesses 8 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup demo test peers test-all test-lowest fuzz lint format bench dashboards manifests docs docs-serve reference clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(SETUP) ## make .venv with everything that the other targets need

$(SETUP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Pyrometer needs Python 3.11 or newer: make setup PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[server,agent,dev]'
	@touch $@

$(HEAVY): $(SETUP)
	$(BIN)/pip install --quiet --editable '.[server,agent,dev,heavy,docs]'
	@touch $@

# Needs nothing of the rest: who writes pages need not have PyTorch.
$(DOCS): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[docs]'
	@touch $@

# On top of .venv, whose PyTorch it takes. It asks for older `datasets`, and for triton, which PyTorch for CPUs leaves out.
$(TORCHTITAN): $(SETUP)
	$(PYTHON) -m venv .venv-torchtitan
	@.venv-torchtitan/bin/python -c 'import pathlib, sysconfig; \
		beneath = sorted(pathlib.Path(".venv").resolve().glob("lib/python*/site-packages"))[0]; \
		pathlib.Path(sysconfig.get_path("purelib"), "beneath.pth").write_text(f"import site; site.addsitedir({str(beneath)!r})\n")'
	.venv-torchtitan/bin/pip install --quiet torchtitan==0.3.0 triton==3.9.0
	@touch $@

# Kubeflow's own packages, 140 MB: fixtures of tests are compared with what they make. What kfp pins clashes with the others.
$(KUBEFLOW):
	$(PYTHON) -m venv .venv-kubeflow
	.venv-kubeflow/bin/pip install --quiet kubeflow-training==1.9.4 kfp-pipeline-spec click docstring-parser PyYAML protobuf \
		tabulate requests requests-toolbelt google-auth google-cloud-storage kfp-server-api grpcio
	.venv-kubeflow/bin/pip install --quiet --no-deps kfp==2.17.3 kubeflow-katib==0.19.0
	@touch $@

# The FinOps Foundation's validator, 416 MB, in an environment of its own: it wants numpy 1, pandas 2 and sqlglot 18. The
# one release there is on PyPI, 1.0.0, knows FOCUS 1.0; it imports what multimethod 1.11 renamed.
$(FOCUS):
	$(PYTHON) -m venv .venv-focus
	.venv-focus/bin/pip install --quiet 'focus-validator==1.0.0' 'multimethod<1.11'
	@touch $@

peers: $(TORCHTITAN) $(FOCUS) $(KUBEFLOW) ## environments of their own for packages that clash with others: torchtitan, the FOCUS validator, Kubeflow's

demo: setup ## the main job: a simulated night on 304 GPUs, accounted and explained; on a terminal, served as a page
	@$(BIN)/pyrometer demo --out $(DEMO)

test: setup ## the tests that need nothing but this checkout
	$(BIN)/pytest -q $(CORES) -m 'not heavy'

test-all: $(HEAVY) $(TORCHTITAN) $(FOCUS) $(KUBEFLOW) ## all tests: also those that need minutes, frameworks, servers (KUBEBUILDER_ASSETS) or real traces (PYROMETER_TEST_DATA)
	PYROMETER_EXAMPLES=$${PYROMETER_EXAMPLES:-2} $(BIN)/pytest -q $(MORE_CORES)

test-lowest: ## tests with the lowest versions of dependencies that pyproject.toml allows, in .venv-lowest
	$(PYTHON) tools/lowest_versions.py

# atheris, 35 MB to load and 130 installed, which has libFuzzer in it: on top of .venv, since only this needs it.
$(FUZZ): $(SETUP)
	$(PYTHON) -m venv .venv-fuzz
	@.venv-fuzz/bin/python -c 'import pathlib, sysconfig; \
		beneath = sorted(pathlib.Path(".venv").resolve().glob("lib/python*/site-packages"))[0]; \
		pathlib.Path(sysconfig.get_path("purelib"), "beneath.pth").write_text(f"import site; site.addsitedir({str(beneath)!r})\n")'
	.venv-fuzz/bin/pip install --quiet atheris==3.0.0
	@touch $@

fuzz: $(FUZZ) ## throw bytes at what reads them, led by coverage: make fuzz [TARGET=otlp_json] [SECONDS=60] [KEEP=--keep]
	.venv-fuzz/bin/python tools/fuzz.py $(TARGET) --seconds $(SECONDS) $(KEEP)

lint: setup ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup ## put the code into form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(HEAVY) ## the benchmarks; some take half an hour
	$(BIN)/python benchmarks/ledger.py
	$(BIN)/python benchmarks/peers
	$(BIN)/python benchmarks/backup.py
	$(BIN)/python benchmarks/detect.py
	$(BIN)/python benchmarks/watch.py
	$(BIN)/python benchmarks/remembered.py
	$(BIN)/python benchmarks/scrape.py
	$(BIN)/python benchmarks/remote_write.py
	$(BIN)/python benchmarks/otlp.py
	$(BIN)/python benchmarks/serve.py
	$(BIN)/python benchmarks/edge.py --gpus 10000 --minutes 8 --speed 8
	$(BIN)/python benchmarks/edge.py --speed 3 --scrape-every 60 --window 60
	$(BIN)/python benchmarks/sizing.py
	$(BIN)/python benchmarks/faults.py --every 12 --random 10
	$(BIN)/python benchmarks/soak.py
	$(BIN)/python benchmarks/page.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/lineage.py
	$(BIN)/python benchmarks/newcomer.py

dashboards: setup ## write what is generated under deploy/: Grafana's dashboards, and the rules as an object for the Prometheus operator
	$(BIN)/python -m pyrometer.export.dashboards deploy

manifests: ## what to apply to a cluster: make manifests IMAGE=registry.example.com/pyrometer:0.1.0 [DEPLOY=deploy/overlays/agent]
	@test -n "$(IMAGE)" || { echo "Which image? make manifests IMAGE=registry.example.com/pyrometer:0.1.0" \
		"(build it with deploy/Containerfile)" >&2; exit 2; }
	@command -v kubectl >/dev/null || { echo "make manifests needs kubectl, for its kustomize" >&2; exit 1; }
	@kubectl kustomize $(DEPLOY) | sed 's#image-is-required.see-deploy-base-kustomization#$(IMAGE)#'

# Not --quiet: strict would not see its own warnings.
docs: $(DOCS) ## the documentation as a site, in site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(DOCS) ## the same on http://127.0.0.1:8000, anew with every change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

reference: setup ## write docs/reference/ again, from the code
	$(BIN)/python tools/reference_pages.py

clean: ## remove what the other targets made
	rm -rf .venv .venv-* $(DEMO) site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
