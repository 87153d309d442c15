import pytest

from serve_eval.launchers._embedded.model import Model
from serve_eval.launchers._embedded.tokenizer import Tokenizer
from tests.launchers.embedded import tiny


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Write a tiny random model."""
    return tiny.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def model(folder):
    return Model(folder)


@pytest.fixture(scope="session")
def tokenizer(folder):
    return Tokenizer(folder / "tokenizer.json")
