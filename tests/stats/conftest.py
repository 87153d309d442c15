"""Provide the shared test vectors by kind.

The central ones are also rows in the tests, so that these run anywhere.
"""

import json

import pytest


@pytest.fixture(scope="session")
def vectors(shared):
    """Return all vectors of one kind; a kind without vectors fails the test."""
    every = json.loads((shared / "vectors" / "verdict_vectors.json").read_text())["vectors"]

    def of_kind(kind):
        chosen = [vector for vector in every if vector["kind"] == kind]
        assert chosen, f"no vectors of kind {kind}"
        return chosen

    return of_kind
