"""A lower layer never imports a higher one, and siblings in a folder do not import each other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

LAYERS: list[tuple[str, ...]] = [
    ("errors", "pace"),
    (
        "schema",
        "stats",
        "folders",
        "nested_options",
        "origins",
        "yaml_file",
        "yaml_edit",
        "address",
        "fingerprint",
        "prompt_hash",
        "order",
        "traffic",
        "inherited",
    ),
    (
        "concurrency",
        "masking",
        "watch",
        "descriptors",
        "repeats",
        "asking",
        "aggregations",
        "degradation",
        "joining",
        "meeting",
        "apart",
        "apart_process",
        "chat_template",
        "special_tokens",
        "lm_eval_layout",
        "ownership",
    ),
    (
        "client",
        "deployment",
        "hung",
        "connection",
        "journal",
        "server_logs",
        "perf_files",
        "exact_joining",
        "served",
        "served_files",
        "attribution",
        "slow_workers",
        "run_folder",
        "order_seed",
        "held",
        "reference",
        "reference_import",
        "reference_samples",
        "failure_modes",
        "pairing",
        "against_reference",
        "prompt_kinds",
        "measured",
        "history",
        "charting",
        "plan",
        "protocol",
        "validity",
        "report",
        "scorers",
        "cases",
        "datasets",
        "harness",
        "launchers",
        "sandbox",
    ),
    ("choices", "executions", "judgements", "proofs", "scoring", "tally", "alarm", "runner", "tasks", "verdicts"),
    (
        "preparation",
        "reaching",
        "trust",
        "early",
        "rerunning",
        "probe",
        "first_token",
        "quirks",
        "endpoint",
        "judging",
        "work",
        "reporting",
        "evaluation",
        "holding",
        "attaching",
        "registration",
        "old_results",
        "rescoring",
        "exporting",
        "smoke",
        "canary",
        "diagnosis",
        "capsule",
        "answer_pairs",
        "self_flips",
        "service_pairs",
        "divergence",
        "twin_verdict",
        "comparison",
        "chunk_lengths",
        "attributing",
        "invariants",
        "demo",
    ),
    ("suite",),
    ("cli", "lm_eval_model", "__main__"),
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FREE_OF_SIBLINGS = ("tasks", "scorers", "verdicts", "launchers")


def _imports(file: Path) -> set[str]:
    """Modules of ours that a file imports at any place, but not what only type checkers see."""
    tree = ast.parse(file.read_text())
    typing_only = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and isinstance(test.test, ast.Name) and test.test.id == "TYPE_CHECKING"
        for node in ast.walk(test)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.split(".")[0] in ("serve_eval", "launchers")}


def _part(module: str) -> str | None:
    """The layer's name of a module: `serve_eval.client.wire` is `client`; the package itself is none."""
    names = module.split(".")
    return names[0] if names[0] == "launchers" else (names[1] if len(names) > 1 else None)


def _modules() -> list[tuple[str, Path]]:
    files = [*ROOT.glob("serve_eval/**/*.py"), *ROOT.glob("launchers/**/*.py")]
    return [(".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), f) for f in sorted(files)]


def test_every_module_has_a_layer() -> None:
    unknown = {_part(name) for name, _ in _modules()} - set(LEVEL) - {None}
    assert not unknown


@pytest.mark.parametrize(("name", "file"), _modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_no_module_imports_a_higher_layer(name: str, file: Path) -> None:
    part = _part(name)
    if part is None:
        return
    for imported in _imports(file):
        other = _part(imported)
        if other in LEVEL:
            assert LEVEL[other] <= LEVEL[part], f"{name} imports {imported}"


def test_alternatives_do_not_import_each_other() -> None:
    for name, file in _modules():
        part = _part(name)
        if part in FREE_OF_SIBLINGS:
            siblings = [i for i in _imports(file) if _part(i) == part and not i.split(".")[-1].startswith("_")]
            package = name.rsplit(".", 1)[0]
            assert not [s for s in siblings if s.startswith(package + ".") and "._" not in s], name


def test_launchers_see_only_nouns_and_errors() -> None:
    names = ("schema", "errors", "masking", "prompt_hash", "chat_template", "special_tokens", "inherited")
    allowed = {f"serve_eval.{name}" for name in names}
    for name, file in _modules():
        if name.startswith("launchers"):
            for imported in _imports(file):
                if imported.startswith("serve_eval"):
                    assert any(imported == a or imported.startswith(a + ".") for a in allowed), f"{name}: {imported}"


def test_only_the_story_and_the_door_know_the_launchers() -> None:
    for name, file in _modules():
        if LEVEL.get(_part(name) or "", 0) < LEVEL["evaluation"] and not name.startswith("launchers"):
            assert not [i for i in _imports(file) if i.startswith("launchers")], name
