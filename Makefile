# The commands of the README: `make demo` and `make test`. `make check` is the inner loop (under 2 minutes), `make test-all`
# everything that this machine can run.
PYTHON ?= python3
KUBERNETES ?= 1.30
SEED ?= 1
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUN := $(READY)-run
TEST := $(READY)-test
NO_ROOT = $(shell [ "$$(id -u)" = 0 ] || echo --pool fake --runtime none)
LAYERS := test docs proto plots resolve release

.PHONY: demo test fresh fresh-demo test-all test-rest test-changed programs test-compat test-upgrade test-velero test-cinder test-upstream test-upstream-box test-tests mutants check check-tests check-code check-types setup setup-docs setup-proto setup-plots setup-resolve setup-release setup-layers debian debian-test debian-test-all check-constraints bench cluster cluster-down image version release release-verify chart proto reference docs clean

demo: debian $(RUN)    ## set everything up and tell the story on real volumes
	@[ -z "$(NO_ROOT)" ] || echo "demo: no root: volumes are not mounted, pods run no programs; all of it: sudo make demo"
	$(BIN)/tonnage demo $(NO_ROOT)

test: setup            ## what needs neither Go nor guests; what this machine cannot run is listed
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory -j2 test-tests check-types

test-tests:
	$(BIN)/python -m scripts.run_tests

test-all: debian-test-all $(TEST)  ## guests, real clusters and programs in Go as well
	-$(BIN)/python -m scripts.build_programs
	$(MAKE) test test-rest

test-rest: $(TEST)     ## what `make test` leaves out
	$(BIN)/python -m scripts.run_tests --rest

test-changed: $(TEST)  ## of what `make test` leaves out: what the last landing's changes reach, and a turn (docs/testing.md)
	$(BIN)/python -m scripts.run_tests --changed

programs: debian-test-all $(TEST)  ## build the programs in Go that tests run (Go needed); a first build takes a quarter of an hour
	$(BIN)/python -m scripts.build_programs

check: $(TEST)         ## the inner loop: lint, types, layers, measures, unit tests, 60 kills
	@$(MAKE) --no-print-directory -j2 check-tests check-code

check-tests:
	$(BIN)/python -m scripts.run_tests --check -q

check-code: check-types
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/python scripts/measure.py --summary

check-types:
	$(BIN)/mypy
	$(BIN)/lint-imports

fresh:                 ## the two commands as a stranger types them, in a bare Debian 12 and 13 (root; docs/testing.md)
	@$(PYTHON) -m scripts.fresh

fresh-demo:            ## the demo in a bare Debian 12
	@$(PYTHON) -m scripts.fresh --debian 12 demo

mutants: $(TEST)       ## make small faults in one file, and show which of them no test finds: FILE=src/tonnage/provisioning/capacity/ledger.py SEED=2
	@nice $(BIN)/python -m scripts.mutants $(FILE) --seed $(SEED)

bench: setup           ## the figures of the README, printed as tables
	$(BIN)/python -m benchmarks

setup: debian-test $(TEST)  ## what `make test` needs: Debian packages (root and apt needed) and the virtual environment

debian:
	@sh scripts/debian-packages

debian-test:
	@sh scripts/debian-packages test

debian-test-all:
	@sh scripts/debian-packages test-all
	@$(PYTHON) tests/vm/debian_uml.py

# Each layer has a mark: what is there and unchanged costs nothing.
$(RUN): pyproject.toml box/pyproject.toml constraints/run.txt scripts/venv
	@sh scripts/venv run "$(PYTHON)" $(VENV)

$(LAYERS:%=$(READY)-%): $(READY)-%: $(RUN) constraints/%.txt
	@sh scripts/venv $* "$(PYTHON)" $(VENV)

setup-docs setup-proto setup-plots setup-resolve setup-release: setup-%: $(READY)-%  ## a layer of the virtual environment that `make test` does not install

setup-layers: debian $(LAYERS:%=$(READY)-%)  ## all of them, so that no test is skipped for want of one

check-constraints: $(READY)-resolve  ## check that every Python from 3.11.0 to 3.14 has the versions of constraints/, and nothing is missing
	$(BIN)/python -m scripts.check_constraints

cluster: debian-test-all image  ## a real Kubernetes on this machine (Go needed), two nodes that have our image; prints its KUBECONFIG
	@$(BIN)/python -m cluster up --image dist/tonnage.tar

cluster-down:          ## end it; nothing is left
	@$(BIN)/python -m cluster down

test-compat: debian-test-all $(TEST)  ## the end-to-end tests on another Kubernetes, as KUBERNETES=1.35 (docs/compatibility.md); a first build takes long
	$(BIN)/python -m scripts.compat $(KUBERNETES)

test-upgrade: debian-test-all $(TEST)  ## from another commit to this one and back, under pods that write, on real kubelets: FROM=6914cf6a (docs/testing.md)
	@sh scripts/upgrade-from "$(FROM)"

test-velero: debian-test-all $(TEST)  ## Velero's backup, restore and deletion of a namespace on real kubelets (docs/conformance.md); a long first build
	$(BIN)/python -m scripts.build_programs velero
	$(BIN)/pytest -q -m velero tests/e2e

test-upstream: debian-test-all $(TEST)  ## Kubernetes' own External Storage tests on real kubelets (docs/conformance.md); hours, and a long first build
	$(BIN)/python -m tests.upstream

test-upstream-box: debian-test-all $(TEST)  ## the same tests against a box (docs/conformance.md); a long first build
	$(BIN)/python -m tests.upstream.box

test-cinder: debian-test-all $(TEST)  ## OpenStack Cinder's library, and its LVM driver over iSCSI in user-mode Linux (docs/cinder.md)
	@sh scripts/debian-packages cinder
	@sh scripts/cinder-venv "$(PYTHON)"
	$(BIN)/pytest -q tests/cinder

image: $(RUN)          ## the container image as an archive in dist/, without Docker (Debian, apt)
	@$(BIN)/python -m deploy.image

version: $(RUN)        ## write VERSION into each file that has it
	@$(BIN)/python -m deploy.release version $(VERSION)

release: $(READY)-release  ## make and sign the files of the tag vVERSION (docs/release.md): VERSION=0.2.0 KEY=~/.ssh/release
	@$(BIN)/python -m deploy.release make $(VERSION) --key $(KEY)

release-verify: $(READY)-release  ## build the tag vVERSION twice, on unlike systems, and compare the bytes: VERSION=0.2.0
	@$(BIN)/python -m deploy.release twice $(VERSION)

chart: $(RUN)          ## regenerate the Helm chart's templates from src/tonnage/tools/ops/install/templates, and the snapshots' definitions
	$(BIN)/python scripts/gen_snapshot_crds.py
	$(BIN)/python scripts/gen_chart.py

proto: $(READY)-proto  ## regenerate the folders _proto of src/tonnage from their .proto files
	$(BIN)/python scripts/gen_proto.py

reference: $(RUN)      ## regenerate docs/reference/{cli,metrics,events,annotations}.md from the code
	$(BIN)/python scripts/gen_reference.py

docs: $(READY)-docs    ## the documentation as a site in build/site; strict links, no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo 'build/site: $(BIN)/python -m http.server -d build/site'

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
