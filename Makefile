# SPDX-FileCopyrightText: The Lockstep authors
# SPDX-License-Identifier: Apache-2.0

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The race detector needs a C compiler; without one the tests run without it.
RACE ?= $(shell command -v gcc >/dev/null 2>&1 && echo -race)
TESTFLAGS ?= $(RACE) -timeout 30m
PKG ?= ./...

# Programs of other projects that must agree with Lockstep; tests use them if installed.
PEERS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/lockstep/peers
COSIGN_VERSION := v2.6.5
COSIGN ?= $(wildcard $(PEERS)/cosign-$(COSIGN_VERSION))
export COSIGN

TOOLS := bin/tools
tool = $(TOOLS)/$(1)

.PHONY: help
help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the three programs into bin/
	go build -o bin/ ./cmd/...

# build uses other flags, so that it shares compiled packages with the tests and
# the linters.
.PHONY: dist
dist: ## build static, reproducible programs for releases into bin/dist/
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/dist/ ./cmd/...

.PHONY: test
test: controlplane ## run all tests against a real control plane (PKG=./payload/... for some)
	go test $(TESTFLAGS) $(PKG)

.PHONY: demo
demo: build ## run the demo: a Git commit becomes a running release and upgraded hosts
	go run ./test/demo

.PHONY: e2e
e2e: build controlplane ## run the whole-program tests
	go test $(TESTFLAGS) -count=1 -v ./test/e2e/...

.PHONY: bench
bench: controlplane ## run the benchmarks, half an hour, into bin/bench.json (ROWS=repair,plan and ROUNDS=1 for less)
	go run ./test/bench $(if $(ROWS),-rows $(ROWS)) $(if $(ROUNDS),-rounds $(ROUNDS))

.PHONY: controlplane
controlplane: ## compile the tests' control plane into the user's cache (once, about five minutes)
	@go run ./test/controlplane/build

.PHONY: peers
peers: $(PEERS)/cosign-$(COSIGN_VERSION) ## compile the cosign CLI for the tests into the user's cache (once)

$(PEERS)/cosign-$(COSIGN_VERSION):
	@echo "compiling cosign $(COSIGN_VERSION) (once, a few minutes)"
	@mkdir -p $(PEERS)/build
	@GOFLAGS= GOBIN=$(PEERS)/build go install github.com/sigstore/cosign/v2/cmd/cosign@$(COSIGN_VERSION)
	@mv $(PEERS)/build/cosign $@ && rmdir $(PEERS)/build

.PHONY: print-cosign
print-cosign:
	@echo $(PEERS)/cosign-$(COSIGN_VERSION)

.PHONY: lint
lint: $(call tool,golangci-lint) ## run the linters
	$(call tool,golangci-lint) run ./...

.PHONY: shape
shape: $(call tool,golangci-lint) ## report long, complex and duplicated code (informational)
	$(call tool,golangci-lint) run --enable-only cyclop,dupl,funlen,goconst,interfacebloat --issues-exit-code 0 ./...

.PHONY: fmt
fmt: $(call tool,golangci-lint) ## format all Go files
	$(call tool,golangci-lint) fmt ./...

.PHONY: generate
generate: $(call tool,controller-gen) $(call tool,protoc-gen-go) $(call tool,protoc-gen-go-grpc) ## generate CRDs, deep copies, protobuf code and the reference of reasons
	@command -v protoc >/dev/null || { echo 'generate: install protoc 3.21.12 (Debian: protobuf-compiler, libprotobuf-dev)' >&2; exit 1; }
	$(call tool,controller-gen) object:headerFile=config/boilerplate.go.txt crd:maxDescLen=300 \
	  paths=./config/v1alpha1 output:crd:dir=config/crd
	PATH="$(CURDIR)/$(TOOLS):$$PATH" go generate ./nodeos/agentpb
	go run ./config/reasons/page > docs/reference/reasons.md

.PHONY: verify
verify: generate lint ## fail if generated files are outdated or a linter reports problems
	git diff --exit-code -- config nodeos/agentpb docs/reference

.PHONY: kustomize
kustomize: ## render config/default into bin/install.yaml
	@mkdir -p bin
	kubectl kustomize config/default > bin/install.yaml
	@echo "bin/install.yaml: $$(grep -c '^kind:' bin/install.yaml) objects"

.PHONY: clean
clean: ## remove bin/ (the cached control plane is kept)
	rm -rf bin

# The tools have their own module file; each is built once.
$(TOOLS)/golangci-lint: IMPORT = github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(TOOLS)/controller-gen: IMPORT = sigs.k8s.io/controller-tools/cmd/controller-gen
$(TOOLS)/protoc-gen-go: IMPORT = google.golang.org/protobuf/cmd/protoc-gen-go
$(TOOLS)/protoc-gen-go-grpc: IMPORT = google.golang.org/grpc/cmd/protoc-gen-go-grpc
$(TOOLS)/benchstat: IMPORT = golang.org/x/perf/cmd/benchstat
$(TOOLS)/%: go.tools.mod go.tools.sum
	@echo "building $* (once)"
	@mkdir -p $(TOOLS)
	@CGO_ENABLED=0 go build -modfile=go.tools.mod -trimpath -o $@ $(IMPORT)
