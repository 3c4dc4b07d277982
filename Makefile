# Run `make` to list the targets.
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.ready
HEAVY := .venv/.ready-heavy
DOCS := .venv/.ready-docs
TORCHTITAN := .venv-torchtitan/.ready
FOCUS := .venv-focus/.ready
KUBEFLOW := .venv-kubeflow/.ready
FUZZ := .venv-fuzz/.ready
LOCKER := .venv-lock/.ready
# A lock file with hashes to install first, for example `make setup LOCK=locks/dev.txt`.
LOCK ?=
INSTALL_LOCKED = $(if $(LOCK),$(BIN)/pip install --quiet --require-hashes --requirement $(LOCK))
SECONDS ?= 60
DEMO ?= pyrometer-demo
DEPLOY ?= deploy/base
CORES ?= --numprocesses auto --maxprocesses 8 --dist worksteal
# One process more than there are cores: many heavy tests wait for servers and other processes.
MORE_CORES ?= --numprocesses $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --maxprocesses 8 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup demo test peers test-all test-lowest coverage fuzz lint words format lock bench dashboards manifests docs docs-serve reference clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(SETUP) ## Create .venv with the development dependencies [LOCK=locks/dev.txt]

$(SETUP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Pyrometer needs Python 3.11 or newer: make setup PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(INSTALL_LOCKED)
	$(BIN)/pip install --quiet --editable '.[server,agent,dev]'
	@touch $@

$(HEAVY): $(SETUP)
	$(BIN)/pip install --quiet --editable '.[server,agent,dev,heavy,docs]'
	@touch $@

# Independent of the other environments: writing documentation does not need PyTorch.
$(DOCS): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL_LOCKED)
	$(BIN)/pip install --quiet --editable '.[docs]'
	@touch $@

# Uses the PyTorch of .venv. torchtitan requires an older `datasets`, and triton, which PyTorch for CPUs does not include.
$(TORCHTITAN): $(SETUP)
	$(PYTHON) -m venv .venv-torchtitan
	@.venv-torchtitan/bin/python -c 'import pathlib, sysconfig; \
		beneath = sorted(pathlib.Path(".venv").resolve().glob("lib/python*/site-packages"))[0]; \
		pathlib.Path(sysconfig.get_path("purelib"), "beneath.pth").write_text(f"import site; site.addsitedir({str(beneath)!r})\n")'
	.venv-torchtitan/bin/pip install --quiet torchtitan==0.3.0 triton==3.9.0
	@touch $@

# Kubeflow's own packages, 140 MB: tests compare their fixtures with the output of these packages.
# kfp pins versions that conflict with other dependencies.
$(KUBEFLOW):
	$(PYTHON) -m venv .venv-kubeflow
	.venv-kubeflow/bin/pip install --quiet kubeflow-training==1.9.4 kfp-pipeline-spec click docstring-parser PyYAML protobuf \
		tabulate requests requests-toolbelt google-auth google-cloud-storage kfp-server-api grpcio
	.venv-kubeflow/bin/pip install --quiet --no-deps kfp==2.17.3 kubeflow-katib==0.19.0
	@touch $@

# The FinOps Foundation's validator, 416 MB, needs a separate environment: it requires numpy 1, pandas 2 and sqlglot 18.
# Its only release on PyPI, 1.0.0, supports FOCUS 1.0 and imports a name that multimethod 1.11 renamed.
$(FOCUS):
	$(PYTHON) -m venv .venv-focus
	.venv-focus/bin/pip install --quiet 'focus-validator==1.0.0' 'multimethod<1.11'
	@touch $@

peers: $(TORCHTITAN) $(FOCUS) $(KUBEFLOW) ## Create the separate environments of torchtitan, the FOCUS validator and Kubeflow

demo: setup ## Simulate a night on 304 GPUs and explain its cost; on a terminal, serve the web page
	@$(BIN)/pyrometer demo --out $(DEMO)

test: setup ## Run the tests that need only this checkout
	$(BIN)/pytest -q $(CORES) -m 'not heavy'

test-all: $(HEAVY) $(TORCHTITAN) $(FOCUS) $(KUBEFLOW) ## Run all tests, including those that need frameworks, servers (KUBEBUILDER_ASSETS) or traces (PYROMETER_TEST_DATA)
	PYROMETER_EXAMPLES=$${PYROMETER_EXAMPLES:-2} $(BIN)/pytest -q $(MORE_CORES)

test-lowest: ## Run tests with the lowest dependency versions that pyproject.toml allows, in .venv-lowest
	$(PYTHON) tools/lowest_versions.py

# Slower than `make test`, because it measures every line and branch, in subprocesses too.
coverage: setup ## Run the tests of `make test` and measure their coverage: .coverage/html/index.html
	@mkdir -p .coverage
	$(BIN)/pytest -q $(CORES) -m 'not heavy' --cov --cov-report=term --cov-report=html --cov-report=json:.coverage/coverage.json

# atheris, a 35 MB download and 130 MB installed, contains libFuzzer. Only this target needs it.
$(FUZZ): $(SETUP)
	$(PYTHON) -m venv .venv-fuzz
	@.venv-fuzz/bin/python -c 'import pathlib, sysconfig; \
		beneath = sorted(pathlib.Path(".venv").resolve().glob("lib/python*/site-packages"))[0]; \
		pathlib.Path(sysconfig.get_path("purelib"), "beneath.pth").write_text(f"import site; site.addsitedir({str(beneath)!r})\n")'
	.venv-fuzz/bin/pip install --quiet atheris==3.0.0
	@touch $@

fuzz: $(FUZZ) ## Fuzz every parser, guided by coverage [TARGET=otlp_json] [SECONDS=60] [KEEP=--keep]
	.venv-fuzz/bin/python tools/fuzz.py $(TARGET) --seconds $(SECONDS) $(KEEP)

lint: setup ## Check style, types, imports between layers, and words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/words.py

words: setup ## List names and phrases that are not plain English [ONLY="--summary --path src/pyrometer/serve"]
	@$(BIN)/python tools/words.py $(ONLY)

format: setup ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(LOCKER):
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install --quiet 'uv>=0.13'
	@touch $@

# One lock file serves Python 3.11 and later on all platforms. PyTorch is not locked, because its build depends on the machine:
# `make setup` installs it afterwards. The image gets the versions that the tests ran with, and the build backend from build.txt.
LOCK_COMMAND = .venv-lock/bin/uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command 'make lock' $(UPGRADE)
lock: $(LOCKER) ## Update the lock files after a change of dependencies [UPGRADE=--upgrade]
	$(LOCK_COMMAND) --excludes locks/cuda.txt --no-emit-package torch --extra server --extra agent --extra dev \
		pyproject.toml --output-file locks/dev.txt
	$(LOCK_COMMAND) --constraint locks/dev.txt --extra server --extra agent pyproject.toml --output-file locks/server.txt
	$(LOCK_COMMAND) --extra docs pyproject.toml --output-file locks/docs.txt
	@$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
		| $(LOCK_COMMAND) - --output-file locks/build.txt

bench: $(HEAVY) ## Run the benchmarks; some take half an hour
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

dashboards: setup ## Generate the Grafana dashboards and the PrometheusRule under deploy/
	$(BIN)/python tools/dashboards.py deploy

manifests: ## Render the manifests for a cluster: IMAGE=registry.example.com/pyrometer:0.1.0 [DEPLOY=deploy/overlays/agent]
	@test -n "$(IMAGE)" || { echo "IMAGE is not set. Build an image with deploy/Containerfile, then pass its name:" \
		"make manifests IMAGE=registry.example.com/pyrometer:0.1.0" >&2; exit 2; }
	@command -v kubectl >/dev/null || { echo "kubectl not found. Install it: make manifests uses its kustomize." >&2; exit 1; }
	@kubectl kustomize $(DEPLOY) | sed 's#image-is-required.see-deploy-base-kustomization#$(IMAGE)#'

# Without --quiet, because --strict ignores warnings that are not printed.
docs: $(DOCS) ## Build the documentation site in site/; a broken link is an error [LOCK=locks/docs.txt]
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(DOCS) ## Serve the documentation on http://127.0.0.1:8000 and rebuild it on every change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

reference: setup ## Generate docs/reference/ from the code
	$(BIN)/python tools/reference_pages.py

clean: ## Remove everything that the other targets create
	rm -rf .venv .venv-* $(DEMO) site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
