"""Test passkeys in texts of any length.

Requests stay the same for a data version, and are new to every prefix cache.
"""

from __future__ import annotations

import hashlib

import pytest

from serve_eval.errors import PlanError
from serve_eval.schema import DataRoots
from serve_eval.tasks import passkey_lines
from serve_eval.tasks._passkey import NOISE


def test_texts_differ_by_length_in_nothing_but_noise_and_title() -> None:
    short, long = (
        passkey_lines.task(lines=lines).load(DataRoots(), 22).samples for lines in (30, 34)
    )
    assert [a.target for a in short] == [b.target for b in long]
    assert [a.metadata for a in short] == [b.metadata for b in long]
    for a, b in zip(short, long, strict=True):
        assert isinstance(a.prompt, str)
        assert isinstance(b.prompt, str)
        assert (a.prompt.count(NOISE), b.prompt.count(NOISE)) == (30, 34)
        assert a.prompt.count(a.target) == 2
    titles = [str(one.prompt).split("\n", 1)[0] for one in (*short, *long)]
    assert len(set(titles)) == len(titles)


def test_the_texts_of_this_data_version() -> None:
    prompts = [str(one.prompt) for one in passkey_lines.task().load(DataRoots(), 55).samples]
    digest = hashlib.sha256("\0".join(prompts).encode()).hexdigest()[:16]
    assert (passkey_lines.DATA_VERSION, digest) == (1, "bf2845eba61dfaaa")


def test_options_out_of_range_are_refused() -> None:
    for options in ({"lines": 0}, {"num_samples": 0}):
        with pytest.raises(PlanError, match="1 or more"):
            passkey_lines.task(**options)
