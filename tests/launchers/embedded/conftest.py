from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval.launchers._embedded.model import Model
from serve_eval.launchers._embedded.tokenizer import Tokenizer
from tests.launchers.embedded import tiny


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Write a tiny random model."""
    return tiny.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def model(folder: Path) -> Model:
    return Model(folder)


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder / "tokenizer.json")
