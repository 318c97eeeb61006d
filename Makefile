# The front door. `make help` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

# Where rustup knows the pinned version only as `stable`, that name is used.
RUST_VERSION := $(shell sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
ifneq ($(shell rustc --version 2>/dev/null | cut -d ' ' -f 2),$(RUST_VERSION))
ifeq ($(shell RUSTUP_TOOLCHAIN=stable rustc --version 2>/dev/null | cut -d ' ' -f 2),$(RUST_VERSION))
export RUSTUP_TOOLCHAIN := stable
endif
endif

# Name of the cluster for the shell, and its number of nodes.
export LOCKSTEP_TESTBED ?= dev
NODES ?= 1

# Histories of `make soak-simulation`, and cases of each property.
SEEDS ?= 1000000
CASES ?= 50000
# Rounds with faults of `make soak-node`, and restarts with rollouts between them.
ROUNDS ?= 200
RESTARTS ?= 1000
# Versions of Kubernetes and of containerd of `make soak-versions`, and the cases on a node that it runs.
VERSIONS ?= 1.34 1.35 1.36
RUNTIMES ?= 2.2 2.3
OF_NODES ?= restart:: containers:: completion:: deadlines:: memory::
# Minutes of the attack of `make soak-tenant`.
MINUTES ?= 60

CARGO := cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
TESTBED := $(TARGET)/debug/lockstep-testbed
CHART := charts/lockstep
NAMESPACE := lockstep-system
# Linked statically against glibc, so that the images hold nothing but the binary.
STATIC := -C target-feature=+crt-static
# What panics say holds paths of sources. With those of this machine the same sources would make other binaries elsewhere.
CARGO_HOME := $(or $(CARGO_HOME),$(HOME)/.cargo)
REMAPPED := "--remap-path-prefix=$(CARGO_HOME)=/cargo", "--remap-path-prefix=$(CURDIR)=/lockstep"
ifdef CARGO_TARGET_DIR
REMAPPED := $(REMAPPED), "--remap-path-prefix=$(abspath $(CARGO_TARGET_DIR))=/lockstep/target"
endif
RELEASE := $(CARGO) --config 'target.x86_64-unknown-linux-gnu.rustflags=[$(REMAPPED)]'

.PHONY: help
help: ## Show this
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Build

.PHONY: deps
deps: ## Install the Debian packages that are missing (as root); name what else is
	@.ci/deps

.PHONY: build
build: binaries ## Build the static release binaries

.PHONY: binaries
binaries: deps
	$(RELEASE) rustc --release --locked -p lockstep-control-plane --bin lockstep-control-plane -- $(STATIC)
	$(RELEASE) rustc --release --locked -p lockstep-node-daemon --bin lockstep-node-daemon -- $(STATIC)
	$(RELEASE) rustc --profile agent --locked -p lockstep-pod-agent --bin lockstep-pod-agent -- $(STATIC)

# Tests and what they use are always compiled as parts of the whole workspace, and never without a test: cargo then
# chooses the same features of each dependency, and compiles it once.
TESTED := --workspace

# Parts of `make test` run what is compiled already: without cargo, since its lock is held by whatever compiles beside them.
ifdef LOCKSTEP_BUILT
RUN_TESTS := .ci/run-tests
else
RUN_TESTS := $(CARGO) test --locked $(TESTED)
endif

# Where tests and their clusters find programs: copies, which no build beside them changes.
CHECKED := $(TARGET)/checked
.PHONY: test-programs
# Parts of `make test` that run side by side find them built, and build nothing under each other.
ifdef LOCKSTEP_BUILT
test-programs:
else
test-programs: deps ## Compile all tests, and what their clusters run, once
	mkdir -p $(TARGET)/test
	$(CARGO) build --locked $(TESTED) --all-targets --quiet --message-format=json-render-diagnostics > $(TARGET)/test/cargo.json
	.ci/run-tests --list $(TARGET)/test/cargo.json
	for program in lockstep-control-plane lockstep-node-daemon kubectl-lockstep; do \
	  install -D -C $(TARGET)/debug/$$program $(CHECKED)/$$program; \
	done
	$(CARGO) rustc --locked --quiet -p lockstep-pod-agent --bin lockstep-pod-agent -- $(STATIC)
	install -D -C $(TARGET)/debug/lockstep-pod-agent $(CHECKED)/lockstep-pod-agent
endif

.PHONY: cli
cli: deps ## Build the kubectl plugin: target/release/kubectl-lockstep
	$(RELEASE) build --release --locked -p lockstep-cli

.PHONY: python-client
python-client: deps ## Build the Python client of the platform API: wheel and source distribution in target/python/dist
	clients/python/test $(TARGET)/python build

.PHONY: archives
archives: binaries testbed ## Write the images as OCI archives to target/images, to push to a registry, with their bills of materials
	$(TESTBED) save-images $(TARGET)/images

.PHONY: testbed
ifdef LOCKSTEP_BUILT
testbed:
else
testbed: deps
	$(CARGO) build --locked $(TESTED) --bin lockstep-testbed --bin lockstep-demo --bin lockstep-bench --test agent --quiet
endif

.PHONY: tools
tools: testbed ## Build what the cluster is made of: Kubernetes, containerd, etcd ... (7 minutes the first time)
	$(TESTBED) tools build

.PHONY: checkers
checkers: testbed ## Build what checks the chart and calls the platform API: promtool, with Prometheus, and grpcurl
	$(TESTBED) tools path grpcurl
	$(TESTBED) tools path promtool

.PHONY: neighbours
neighbours: testbed ## Build what tests run Lockstep beside: Kueue and Kubeflow Trainer, with its SDK from PyPI (5 minutes the first time)
	$(TESTBED) tools path kueue
	$(TESTBED) tools path trainer-controller-manager
	$(TESTBED) tools path prometheus
	integration/tests/neighbours/install $(TARGET)/kubeflow

.PHONY: reference
reference: ## Write docs/reference from the definitions of the resources and of the platform API
	PYTHONDONTWRITEBYTECODE=1 python3 docs/reference/generate.py

##@ Try

.PHONY: demo
demo: install ## Kill a worker of a running job, in place and with Recreate, and show what happens
	$(TARGET)/debug/lockstep-demo

.PHONY: demo-ddp
demo-ddp: install ## Train with PyTorch, kill ranks, from standbys, in place and with Recreate; draws the loss curves to docs/images/pytorch-ddp.svg
	$(TARGET)/debug/lockstep-bench ddp
	python3 examples/pytorch-ddp/plot.py $(TARGET)/bench/ddp.json docs/images/pytorch-ddp.svg

.PHONY: bench-warm
bench-warm: install ## Train with PyTorch, and kill ranks with standbys ready and without, in turn; writes target/bench/warm.json
	$(TARGET)/debug/lockstep-bench warm

.PHONY: cluster-up
cluster-up: testbed ## Bring a real cluster up on this machine (NODES=1), or use the one that is up
	@$(TESTBED) up --nodes $(NODES)

.PHONY: cluster-down
cluster-down: testbed ## Take the cluster down, completely
	$(TESTBED) down

.PHONY: images
images: binaries cluster-up ## Put the images of Lockstep and of the examples on the cluster's nodes
	$(TESTBED) load-images

.PHONY: install
install: images ## Install Lockstep on the cluster, with its Helm chart
	eval "$$($(TESTBED) up)"; \
	$$($(TESTBED) tools path helm) upgrade --install lockstep $(CHART) \
	  --namespace $(NAMESPACE) --create-namespace --values charts/testbed-values.yaml $(VALUES) \
	  --set-string controller.podAnnotations.build=$$(sha256sum $(TARGET)/release/lockstep-control-plane | cut -c -16) \
	  --set-string nodeDaemon.podAnnotations.build=$$(cat $(TARGET)/release/lockstep-node-daemon $(TARGET)/agent/lockstep-pod-agent | sha256sum | cut -c -16) \
	  --wait --timeout 3m > /dev/null

##@ Check

.PHONY: test
test: deps ## Run everything, side by side: what CI runs
	@.ci/test

.PHONY: fmt
fmt: ## Check the format
	$(CARGO) fmt --all --check

.PHONY: clippy
clippy: deps ## Check with clippy
	$(CARGO) clippy --locked --workspace --all-targets --quiet -- -D warnings

# All that has tests and needs no cluster, but for the simulation.
UNIT := --exclude lockstep-simulation --exclude lockstep-mutants \
  --lib --bin kubectl-lockstep --bin lockstep-pod-agent --bin lockstep-bench --bin lockstep-scale --test agent --test smoke
.PHONY: unit
unit: export PROPTEST_RNG_SEED ?= 1
unit: deps ## Run the tests that need no cluster (random cases are the same each time)
	$(RUN_TESTS) $(UNIT) --quiet

.PHONY: simulation
simulation: deps ## Run 20,000 histories of the restart protocol, and find each broken variant of it
	$(RUN_TESTS) --test histories --quiet

.PHONY: page
page: test-programs ## Run the tests of the status page, in a headless browser
	STATUS_PAGE=$(TARGET)/debug/examples/status_page python3 control-plane/tests/page/page_test.py

.PHONY: page-images
page-images: test-programs ## Draw the pictures of docs/status-page.md
	STATUS_PAGE=$(TARGET)/debug/examples/status_page python3 control-plane/tests/page/page_test.py images docs/images

.PHONY: examples
examples: testbed ## Run the example programs, and Argo CD's health check of JobSets, without a cluster
	PYTHONDONTWRITEBYTECODE=1 python3 examples/ring_test.py
	LUA=$$($(TESTBED) tools path glua) python3 examples/argocd/health_test.py
	PYTHONDONTWRITEBYTECODE=1 python3 examples/pytorch-ddp/plot_test.py
	PYTHONDONTWRITEBYTECODE=1 python3 examples/pytorch-gpu/measure_test.py

.PHONY: examples-torch
examples-torch: deps ## Run the PyTorch example without a cluster; unpacks PyTorch of Debian's packages if it is missing
	PYTHONDONTWRITEBYTECODE=1 python3 examples/pytorch-ddp/train_test.py

.PHONY: docs
docs: ## Check the links, commands and words of the documentation, and that its reference and picture are up to date
	PYTHONDONTWRITEBYTECODE=1 python3 docs/reference/generate_test.py
	PYTHONDONTWRITEBYTECODE=1 python3 docs/reference/generate.py --check
	PYTHONDONTWRITEBYTECODE=1 python3 docs/restart_svg.py --check
	python3 docs/links_test.py
	python3 docs/words_test.py
	.ci/house
	PYTHONDONTWRITEBYTECODE=1 python3 docs/commands_test.py

.PHONY: python-test
python-test: deps ## Build the Python client, install its wheel, check its types and run its tests
	clients/python/test $(TARGET)/python

.PHONY: hook-test
hook-test: ## Run programs with the hook of standbys and without, in every Python that there is, and compare
	PYTHONDONTWRITEBYTECODE=1 python3 -m unittest discover --start-directory pod-agent/hook/tests

.PHONY: chart
chart: testbed ## Check the Helm chart, with its alert rules and dashboard
	charts/test $$($(TESTBED) tools path helm) $$($(TESTBED) tools path promtool)

.PHONY: api-test
api-test: export LOCKSTEP_PROGRAMS := checked
api-test: test-programs ## Run the tests against a real API server
	$(RUN_TESTS) --test jobset_api

.PHONY: gang-test
gang-test: export LOCKSTEP_PROGRAMS := checked
gang-test: test-programs ## Run the tests of gang start, with a real scheduler on nodes without machines
	$(RUN_TESTS) --test gang

.PHONY: ray-test
ray-test: export LOCKSTEP_PROGRAMS := checked
ray-test: test-programs ## Run the tests of RayClusters, RayJobs and RayCronJobs against a real API server, with a stub of Ray's dashboard
	python3 integration/tests/ray/submitter_test.py
	$(RUN_TESTS) --test ray

.PHONY: neighbours-test
neighbours-test: export LOCKSTEP_PROGRAMS := checked
neighbours-test: test-programs neighbours ## Run the tests beside real Kueue and Kubeflow Trainer, with a real scheduler on nodes without machines
	$(RUN_TESTS) --test neighbours

.PHONY: node-test
node-test: export LOCKSTEP_PROGRAMS := checked
node-test: export LOCKSTEP_TEST_NODES := 1
node-test: test-programs ## Run the tests on a real node
	$(RUN_TESTS) --test node

.PHONY: nodes-test
nodes-test: export LOCKSTEP_PROGRAMS := checked
nodes-test: export LOCKSTEP_TEST_NODES := 3
nodes-test: test-programs ## Run the tests on three real nodes, in a cluster of their own
	$(RUN_TESTS) --test node

.PHONY: soak
soak: soak-simulation soak-node soak-tenant soak-ray soak-gang soak-warm soak-versions soak-neighbours soak-cgroup2 ## All of these

.PHONY: soak-simulation
soak-simulation: deps ## Simulate the restart protocol and try its properties for longer (SEEDS=1000000 CASES=50000)
	$(CARGO) run --locked -p lockstep-simulation -- soak --seeds $(SEEDS)
	PROPTEST_CASES=$(CASES) $(CARGO) test --locked -p lockstep-core -p lockstep-node-daemon -p lockstep-pod-agent --lib --bin lockstep-pod-agent --quiet

.PHONY: soak-node
soak-node: binaries ## Restart real workers while everything around them fails (ROUNDS=200), and through rollouts and new authorities (RESTARTS=1000)
	LOCKSTEP_CHAOS_ROUNDS=$(ROUNDS) LOCKSTEP_SOAK_RESTARTS=$(RESTARTS) $(CARGO) test --locked $(TESTED) --test node -- chaos::

.PHONY: soak-tenant
soak-tenant: export LOCKSTEP_TEST_NODES := 2
soak-tenant: binaries ## Attack two nodes with all rights of one tenant (MINUTES=60), while workers of another are killed; writes target/bench/tenant.json
	LOCKSTEP_SOAK_TENANT=$(MINUTES) $(CARGO) test --locked $(TESTED) --test node -- tenant::

.PHONY: soak-ray
soak-ray: binaries ## Have a RayCronJob start jobs on real Ray, which takes minutes
	LOCKSTEP_SOAK_RAY=1 $(CARGO) test --locked $(TESTED) --test node -- ray::cron

.PHONY: soak-gang
soak-gang: deps ## Start 100 gangs all at once and one after another, with a real scheduler, and compare how they use the nodes
	LOCKSTEP_SOAK_GANG=1 $(CARGO) test --locked $(TESTED) --test gang -- one_by_one::

.PHONY: soak-warm
soak-warm: deps ## Restart workers and ranks from standbys, while processes are killed at any moment (RESTARTS=1000)
	LOCKSTEP_SOAK_RESTARTS=$(RESTARTS) LOCKSTEP_SOAK_SEEDS=50 $(CARGO) test --locked $(TESTED) --test agent -- often:: storm::

.PHONY: soak-versions
soak-versions: export LOCKSTEP_PROGRAMS := checked
soak-versions: export LOCKSTEP_TEST_NODES := 1
soak-versions: test-programs ## Run tests with other versions of Kubernetes (VERSIONS="1.34 1.35 1.36"), built for 7 minutes each the first time, and of containerd (RUNTIMES="2.2 2.3")
	for version in $(VERSIONS); do \
	  export KUBERNETES=$$version LOCKSTEP_TESTBED=kubernetes-$${version/./-}; \
	  $(RUN_TESTS) --test jobset_api; $(RUN_TESTS) --test gang; \
	  for cases in $(OF_NODES); do $(RUN_TESTS) --test node -- $$cases; done; \
	done
	for version in $(RUNTIMES); do \
	  export CONTAINERD=$$version LOCKSTEP_TESTBED=containerd-$${version/./-}; \
	  for cases in $(OF_NODES); do $(RUN_TESTS) --test node -- $$cases; done; \
	done

.PHONY: soak-neighbours
soak-neighbours: export LOCKSTEP_PROGRAMS := checked
soak-neighbours: test-programs neighbours ## Run the tests with Kueue, Trainer and Prometheus on other versions of Kubernetes (VERSIONS="1.34 1.35 1.36")
	for version in $(VERSIONS); do \
	  export KUBERNETES=$$version LOCKSTEP_TESTBED=kubernetes-$${version/./-}; \
	  $(RUN_TESTS) --test neighbours; \
	done

.PHONY: soak-cgroup2
soak-cgroup2: export LOCKSTEP_TEST_NODES := 1
soak-cgroup2: binaries ## Restart workers on nodes that are machines with cgroup v2: out of memory, and after a power failure
	LOCKSTEP_SOAK_CGROUP2=1 $(CARGO) test --locked $(TESTED) --test node -- machine::

.PHONY: deny
deny: ## Check licences and sources of dependencies, and advisories where their database can be reached
	@.ci/deny

##@ Measure

.PHONY: bench-restart
bench-restart: install ## Measure restarts: in place on one node and on three, recreation, kubelet alone, lost pods; writes target/bench/restart.json
	$(TARGET)/debug/lockstep-bench restart
	$(MAKE) bench-nodes

# On three nodes, in a cluster of their own: what is up stays as it is, whatever becomes of this. A line that names MAKE would be run by `make -n` too.
.PHONY: bench-nodes
bench-nodes: override export LOCKSTEP_TESTBED := $(LOCKSTEP_TESTBED)-nodes
bench-nodes: binaries testbed
	trap '$(TESTBED) down' EXIT; make install NODES=3; $(TARGET)/debug/lockstep-bench restart --nodes 3

.PHONY: bench-controller
bench-controller: binaries testbed ## Measure 1,000 JobSets at once, and 10,000 pods watched; writes target/bench/controller.json
	$(TARGET)/debug/lockstep-bench controller

.PHONY: bench-gang
bench-gang: binaries testbed ## Measure the start of 1,000 pods on 1,000 nodes, with a gang and without; writes target/bench/gang.json
	$(TARGET)/debug/lockstep-bench gang

.PHONY: bench-ray
bench-ray: VALUES = --set ray.enabled=true
bench-ray: install ## Measure RayJobs of real Ray: until the driver's first line, retried in place and on a new cluster; writes target/bench/ray.json
	$(TARGET)/debug/lockstep-bench ray

.PHONY: bench-scale
bench-scale: NODES = 1000,5000,10000
bench-scale: deps ## Measure one control plane with thousands of simulated nodes, beside Valkey's design (NODES=1000,5000,10000); writes target/bench/scale.json and .svg
	$(RELEASE) run --release --locked -p lockstep-scale -- run --nodes $(NODES)

.PHONY: bench-groups
bench-groups: deps ## Measure 1,000 JobSets on one control plane, 100 of which fail at once; writes target/bench/groups.json
	$(RELEASE) run --release --locked -p lockstep-scale -- groups

.PHONY: bench-system
bench-system: PODS = 10,1000,5000
bench-system: binaries testbed ## Measure one JobSet of thousands of pods on a real API server, in place and recreated (PODS=10,1000,5000); writes target/bench/system.json
	$(RELEASE) run --release --locked -p lockstep-scale -- system --pods $(PODS)
