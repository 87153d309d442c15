"""List the changes of the core, draw some, and try a mutant with its tests.

mutmut only makes the mutants. Its own runner swaps functions in memory, which processes started by
tests do not see, and leaves decorated functions out. Here each mutant is a file.

Each entry is bound to exact lines: if the code there changes, the entry no longer counts.

Each mutant gets those of them that run its line.

A busy machine makes tests exceed their limits and fail in waits of their own. So an outcome that
took long counts only if the unchanged code passes the same tests at that hour.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

PACKAGES = {
    "stats": ("serve_eval/stats/*.py",),
    "verdicts": (
        "serve_eval/verdicts/rules/*.py",
        "serve_eval/verdicts/many_tests.py",
        "serve_eval/verdicts/validity.py",
    ),
    "storage": (
        "serve_eval/storage/journal.py",
        "serve_eval/storage/answer_origins.py",
    ),
    "trust": ("serve_eval/evaluation/trust.py", "serve_eval/storage/ownership.py"),
    "reference": ("serve_eval/verdicts/reference*.py", "serve_eval/verdicts/references/*.py"),
    "launchers/_process": ("launchers/_process/server_process.py",),
    "runner": tuple(
        f"serve_eval/evaluation/engine/{name}.py" for name in ("lane", "load_session", "runner")
    ),
    "early stop": ("serve_eval/evaluation/early_stop.py",),
    "step proofs": (
        "serve_eval/client/transport.py",
        "serve_eval/client/http1/connection.py",
    ),
    "suite": tuple(
        f"serve_eval/workflows/suite/{name}.py"
        for name in ("judgement", "suite_form", "matrix", "rows", "preparation")
    ),
    "watch": tuple(
        f"serve_eval/workflows/watch/{name}.py"
        for name in ("alarming", "asking", "bets", "job", "judging", "probes", "record")
    ),
    "client": ("serve_eval/client/**/*.py",),
}
"""The core, by the names of the score. A file belongs to the first one that matches it."""


LEAST = 25
"""Least number of mutants of a small package in a draw."""


@dataclass(frozen=True)
class Mutant:
    """A change of a source file.

    `lines` are those of the changed statement, `around` those of its function; both are the first
    and the last line.
    """

    package: str
    path: str
    old: str
    new: str
    at: int
    lines: tuple[int, int]
    around: tuple[int, int]
    make: Callable[[], str]

    @property
    def name(self):
        """The name of the change, which does not depend on the rest of the file."""
        return hashlib.sha256(
            "\n".join([self.path, self.old, self.new, str(self.at)]).encode()
        ).hexdigest()[:12]


def mutants_of(root, packages):
    """Return every mutant of the packages, in the order of the files."""
    taken = {
        file: package
        for package in reversed(list(packages))
        for pattern in PACKAGES[package]
        for file in root.glob(pattern)
    }
    return [
        mutant
        for package in packages
        for file in sorted(file for file, of in taken.items() if of == package)
        for mutant in _in_file(
            package, file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")
        )
    ]


def drawn(mutants, count, seed):
    """Draw `count` of them, in their order.

    Each package gets its share, but not fewer than LEAST if it has them. Each mutant has its own
    lot, so a change of the code elsewhere hardly changes the draw.
    """
    by_package = {}
    for one in mutants:
        by_package.setdefault(one.package, []).append(one)
    chosen, left, of = set(), count, len(mutants)
    for group in sorted(by_package.values(), key=len):
        share = min(len(group), left, max(LEAST, round(left * len(group) / of)))
        lots = sorted(group, key=lambda one: hashlib.sha256(f"{seed} {one.name}".encode()).digest())
        chosen |= {id(one) for one in lots[:share]}
        left, of = left - share, of - len(group)
    return [one for one in mutants if id(one) in chosen]


def diff(source, code):
    """Return only the changed lines, each after its sign."""
    lines = difflib.unified_diff(source.splitlines(), code.splitlines(), n=0, lineterm="")
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def _in_file(package, path, source):
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider
    from mutmut.mutation.file_mutation import MutationVisitor
    from mutmut.mutation.mutators import mutation_operators
    from mutmut.mutation.pragma_handling import IgnoredCode

    places = {}

    class Visitor(MutationVisitor):
        def _skip_node_and_children(self, node):
            # Writing the whole file avoids the trouble that mutmut's own runner has with
            # decorators.
            decorated = isinstance(node, cst.FunctionDef) and bool(node.decorators)
            return not decorated and bool(super()._skip_node_and_children(node))

        def _create_mutations(self, node):
            before = len(self.mutations)
            super()._create_mutations(node)
            for mutation in self.mutations[before:]:
                places[id(mutation)] = self.get_metadata(PositionProvider, node).start.line

    visitor = Visitor(
        [*mutation_operators, (cst.Expr, _removed_call)], IgnoredCode(set(), set(), set())
    )
    module = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True).visit(visitor)
    empty, statements, seen = cst.Module([]), _statements(source), {}

    def make(mutation):
        return module.deep_replace(mutation.original_node, mutation.mutated_node).code

    for mutation in visitor.mutations:
        inside = isinstance(mutation.contained_by_top_level_function, cst.FunctionDef)
        if not inside or _is_text(mutation.original_node):
            continue
        old, new = (
            empty.code_for_node(node) for node in (mutation.original_node, mutation.mutated_node)
        )
        if old == new:
            continue
        seen[old, new] = at = seen.get((old, new), -1) + 1
        lines, around = statements[places[id(mutation)]]
        yield Mutant(package, path, old, new, at, lines, around, partial(make, mutation))


def _removed_call(node):
    """Remove a call whose value is not used; mutmut has no such operator."""
    import libcst as cst

    value = node.value.expression if isinstance(node.value, cst.Await) else node.value
    if isinstance(value, cst.Call):
        yield cst.Pass()


def _is_text(node):
    """Return True for text for people.

    Tests of the commands cover messages, not every letter of them.
    """
    import libcst as cst

    return isinstance(node, cst.SimpleString) and " " in node.value


def _statements(source):
    """Return two line ranges for every line of a function.

    The first is that of its innermost statement (only the head of a compound one), the second that
    of the outermost function.
    """
    found = {}

    def walk(nodes, around):
        for node in nodes:
            inside = around
            if isinstance(node, ast.stmt | ast.ExceptHandler):
                last = node.end_lineno or node.lineno
                body = getattr(node, "body", None)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                    inside = around or (first, last)
                head = node.lineno, max(node.lineno, body[0].lineno - 1) if body else last
                for line in range(node.lineno, last + 1) if inside else ():
                    if line <= head[1] or line not in found:
                        found[line] = head, inside
            walk(ast.iter_child_nodes(node), inside)

    walk(ast.parse(source).body, None)
    return found


FILE = Path(__file__).with_name("equivalent.toml")


def listed():
    """Return the reason of each entry, by its file and the lines of its diff."""
    entries = tomllib.loads(FILE.read_text(encoding="utf-8")).get("mutant", [])
    return {
        (entry["file"], *entry["diff"].strip("\n").split("\n")): entry["reason"]
        for entry in entries
    }


CONCERNING = {
    "stats": (
        "tests/stats",
        "tests/verdicts",
        "tests/evaluation/results/test_degradation_alarm.py",
        "tests/evaluation/results/test_degradation.py",
        "tests/evaluation/test_early_stop.py",
        "tests/verdicts/test_early_paired.py",
        "tests/evidence/agreement/test_self_flips.py",
        "tests/evidence/attribution/test_matching.py",
        "tests/workflows/watch/test_judging.py",
        "tests/cli/test_power.py",
    ),
    "client": (
        "tests/client",
        "tests/cli/test_sending.py",
        "tests/evaluation/endpoint/test_hang_detector.py",
        "tests/evaluation/test_media.py",
        "tests/evaluation/test_capabilities.py",
        "tests/evaluation/endpoint/test_server_quirks.py",
        "tests/evaluation/engine/test_runner.py",
    ),
    "runner": (
        "tests/client/test_steps.py",
        "tests/evaluation/engine/test_request.py",
        "tests/evaluation/engine/test_session.py",
        "tests/evaluation/engine/test_concurrency.py",
        "tests/evaluation/engine/test_runner.py",
        "tests/evaluation/test_early_stop.py",
        "tests/evaluation/results/test_degradation_alarm.py",
        "tests/client/test_engine_metrics.py",
    ),
    "storage": (
        "tests/client/test_steps.py",
        "tests/storage/test_journal.py",
        "tests/storage/test_durability.py",
        "tests/evaluation/engine/test_runner.py",
        "tests/storage/records/test_executions.py",
        "tests/storage/records/test_reply_proofs.py",
        "tests/evidence/attribution/test_trace.py",
        "tests/cases/test_conversations.py",
    ),
    "trust": (
        "tests/evaluation/test_trust.py",
        "tests/storage/test_run_folder.py",
        "tests/cli/test_trust.py",
    ),
    "early stop": (
        "tests/evaluation/test_early_stop.py",
        "tests/evaluation/test_early_groups.py",
        "tests/verdicts/test_early_paired.py",
        "tests/verdicts/test_early_repeats.py",
        "tests/workflows/test_groups.py",
    ),
    "step proofs": (
        "tests/client/test_step_ends.py",
        "tests/client/test_http1_connection.py",
        "tests/client/test_steps.py",
        "tests/client/test_connections.py",
        "tests/evaluation/engine/test_runner.py",
    ),
    "suite": ("tests/workflows/suite", "tests/cli/test_suite.py"),
    "watch": ("tests/workflows/watch", "tests/stats/test_calibrate.py"),
    "verdicts": (
        "tests/verdicts",
        "tests/workflows/suite/test_judgement.py",
        "tests/tasks/test_aggregations.py",
        "tests/cli/test_references.py",
    ),
    "reference": (
        "tests/verdicts/test_references.py",
        "tests/verdicts/test_reference_samples.py",
        "tests/workflows/references/test_import_trtllm.py",
        "tests/workflows/references/test_register.py",
        "tests/workflows/references/test_files.py",
        "tests/verdicts/test_validity.py",
        "tests/verdicts/test_one_verdict.py",
        "tests/cli/test_references.py",
        "tests/cli/test_reference_entries.py",
        "tests/cases/test_old_results.py",
    ),
    "launchers/_process": (
        "tests/launchers/test_process.py",
        "tests/launchers/test_fleet.py",
        "tests/launchers/test_server_processes.py",
        "tests/launchers/test_simulated.py",
        "tests/launchers/test_failures.py",
    ),
}
"""Files and folders by part of the core, without slow tests."""


def list_files(root):
    """Return the files of the checkout that git knows or does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    names = (name for name in listed.stdout.split("\0") if name)
    return [name for name in names if (root / name).is_file() or (root / name).is_symlink()]


def copy_checkout(root, copy):
    """Write a copy of the checkout, with its links, in place of an earlier one, and return it."""
    shutil.rmtree(copy, ignore_errors=True)
    for name in list_files(root):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if (root / name).is_symlink():
            (copy / name).symlink_to((root / name).readlink())
        else:
            shutil.copy2(root / name, copy / name)
    return copy


SLACK_S = 15.0
"""Seconds that tests may take beyond a multiple of their earlier duration.

A single test may have to build what it shared with others before.
"""
START_S = 5.0
"""Seconds that imports and fixtures of a quick failure may take."""
TRIES = 4
"""Number of times that a mutant is tried, with limits twice as long each time."""


def tried(done, files, seconds):
    """Return what became of the tests with the changed files, with an "outcome".

    That is `survived`, `killed` or `timeout`, or `undecided` if the unchanged code does not pass
    these tests in their limits either. `seconds` are the earlier durations of the tests, in the
    order to run them.
    """
    result = {}
    for attempt in range(TRIES):
        job = _job(seconds, 2.0**attempt)
        result = done({**job, "files": dict(files)})
        if result["status"] in (0, 5):
            return {**result, "outcome": "survived"}
        over = result["status"] in (None, -signal.SIGALRM)
        if not over and result["seconds"] <= START_S + sum(seconds.values()):
            return {**result, "outcome": "killed"}
        unchanged = done({**job, "files": {}})
        if unchanged["status"] == 0 and unchanged["seconds"] <= job["limit_s"] / 2:
            return {**result, "outcome": "timeout" if over else "killed"}
    return {**result, "outcome": "undecided"}


def _job(seconds, factor):
    return {
        "tests": {test: factor * _limit_s(taken) for test, taken in seconds.items()},
        "paths": list(dict.fromkeys(test.split("::")[0] for test in seconds)),
        "limit_s": factor * _limit_s(sum(seconds.values())),
        "trace": None,
    }


def _limit_s(taken_s):
    return SLACK_S + 4 * taken_s
