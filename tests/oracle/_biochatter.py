"""Run BioChatter's own benchmark code in its checkout: `python _biochatter.py cases | scores`.

`cases` prints the cases that its data set loader makes of its files. `scores` reads JSON from
standard input: tests with a case and answers each. It prints the score of each answer by the test's
own code; the conversation gives the answer, and no result file is written. Packages that the code
imports but does not use here are replaced if they are not installed.
"""

import contextlib
import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

BENCHMARK = Path("benchmark")
_OPTIONAL = (
    "numpy",
    "pandas",
    "requests",
    "rsa",
    "cryptography",
    "cryptography.fernet",
    "nest_asyncio",
    "xinference",
)
_REPLACED = (
    *(
        "biochatter",
        "biochatter.prompts",
        "biochatter.llm_connect",
        "biochatter.llm_connect.available_models",
    ),
    *("xinference.client", "benchmark.benchmark_utils"),
)
TESTS = {
    "medical_exam": ("test_user_interaction", "test_data_medical_exam"),
    "explicit_relevance_of_single_fragments": (
        "test_rag_interpretation",
        "test_data_rag_interpretation",
    ),
    "naive_query_generation_using_schema": (
        "test_biocypher_query_generation",
        "test_data_biocypher_query_generation",
    ),
    "mcp_edam_qa_baseline": ("test_mcp_edam_qa", "test_data_mcp_edam_qa"),
}
"""Tests that compare an answer, with their module and the name of the case parameter."""


def _module(name):
    """Import a module of the benchmark as a member of its package, without running the package."""
    spec = importlib.util.spec_from_file_location(f"benchmark.{name}", BENCHMARK / f"{name}.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _prepare():
    for name in _OPTIONAL:
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = MagicMock()
    sys.modules |= {name: MagicMock() for name in _REPLACED}
    package = ModuleType("benchmark")
    package.__path__ = [str(BENCHMARK)]
    sys.modules["benchmark"] = package


def _cases():
    with contextlib.redirect_stdout(sys.stderr):
        return dict(_module("load_dataset").get_benchmark_dataset())


class _Conversation:
    """A model that gives one answer and keeps the system messages of its conversation."""

    def __init__(self):
        self.answer = ""

    def reset(self):
        """Do nothing: there is no state to reset."""

    def append_system_message(self, message):
        """Ignore the message, which would not change the answer."""

    def query(self, text, **options):
        return self.answer, None, None


def _scores(asked):
    """Score answers by the tests' own code.

    `asked` holds a test, a case, answers and knowledge graph schemas each. A score is None if the
    test raises.
    """
    with contextlib.redirect_stdout(sys.stderr):
        modules = {name: _module(module) for name, (module, _) in TESTS.items()}
    conversation, told = _Conversation(), []

    def once(run_test):
        score, most = run_test()
        given.append(score / most)
        return str(score), most, 1

    with contextlib.redirect_stdout(sys.stderr):
        for name, case, answers, schemas in asked:
            parameters = {"model_name": "m", TESTS[name][1]: case, "multiple_testing": once}
            parameters["baseline_conversation" if name.startswith("mcp") else "conversation"] = (
                conversation
            )
            if schemas is not None:
                parameters["kg_schemas"] = schemas
            scores = []
            for answer in answers:
                conversation.answer, given = answer, []
                try:
                    getattr(modules[name], f"test_{name}")(**parameters)
                # raised by the test, on an answer that it does not expect
                except Exception as error:
                    print(f"{name}: {error!r}")
                scores.append(given[0] if given else None)
            told.append(scores)
    return told


if __name__ == "__main__":
    _prepare()
    print(json.dumps(_cases() if sys.argv[1] == "cases" else _scores(json.load(sys.stdin))))
