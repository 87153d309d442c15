from __future__ import annotations

import pytest

from serve_eval.report.lines import p_text


@pytest.mark.parametrize(
    ("p", "text"),
    [(1.0, "1.0000"), (0.0049, "0.0049"), (0.0001, "0.0001"), (9e-5, "< .0001"), (0.0, "< .0001")],
)
def test_a_tiny_p_is_given_as_a_bound(p: float, text: str) -> None:
    assert p_text(p) == text
