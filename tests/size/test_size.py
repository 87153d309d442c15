"""Test that a package that grows is told, by what counts as a token."""

import pytest

from tests.size import __main__ as size
from tests.size.__main__ import count_tokens, list_excesses


def test_a_package_above_its_budget_and_one_without_are_told():
    budget = {"serve_eval/client": 1000, "bench": 100, "tests/gone": 5}
    found = {"serve_eval/client": 1020, "bench": 103, "serve_eval/new": 1}
    assert list_excesses(found, budget) == [
        "bench: 103 tokens, 3.0% more than its budget of 100",
        "serve_eval/new: 1 tokens, without a budget",
        "tests/gone: no such package",
    ]


@pytest.mark.parametrize(("allowed", "code"), [(1000, 0), (981, 0), (980, 1)])
def test_more_than_the_tolerated_share_is_exit_code_1(allowed, code, capsys):
    assert size.check({"launchers": 1000}, {"launchers": allowed}) == code
    assert ("make size UPDATE=1" in capsys.readouterr().err) == bool(code)


def test_words_and_layout_cost_nothing(tmp_path):
    file = tmp_path / "a.py"
    file.write_text('"""Words and words."""\n\n# A comment.\nif x:\n    y = f(1,\n        2)\n')
    assert count_tokens(file) == len(
        ["words", *["if", "x", ":"], *["y", "=", "f", "(", "1", ",", "2", ")"]]
    )
