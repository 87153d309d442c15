"""The values of --set are those of a plan file, and a text needs no quotes."""

from __future__ import annotations

from typing import Any

import pytest

from serve_eval.errors import PlanError
from serve_eval.plan.settings import CHOICES, spread_keys


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["limits.concurrency=8"], {"concurrency": 8}),
        (["limits.concurrency=auto"], {"concurrency": "auto"}),
        (["limits.rate_limit=1e-3"], {"rate_limit": 0.001}),
        (["limits.rate_limit=inf"], {"rate_limit": float("inf")}),
        (["limits.rate_limit=fast"], {"rate_limit": "fast"}),
        (["limits.known_finish_reasons=it's over"], {"known_finish_reasons": ["it's over"]}),
        (["limits.known_finish_reasons=7"], {"known_finish_reasons": ["7"]}),
        (["limits.known_finish_reasons=[a, b]"], {"known_finish_reasons": ["a", "b"]}),
        (
            ["limits.known_finish_reasons=a", "limits.known_finish_reasons=b"],
            {"known_finish_reasons": ["a", "b"]},
        ),
        (["connection.headers={X-Team: evals}"], {"headers": {"X-Team": "evals"}}),
        (["include_path=/a"], {"include_path": ["/a"]}),
        (["include_path=/a b", "include_path=[/c]"], {"include_path": ["/a b", "/c"]}),
        (["protocol.max_tokens=99"], {CHOICES: {"max_tokens": 99}}),
        (["protocol.thinking=off"], {CHOICES: {"thinking": "off"}}),
        (['protocol.extra_body={"top_k": 1}'], {CHOICES: {"extra_body": {"top_k": 1}}}),
        (["protocol.extra_body={top_k: 1}"], {CHOICES: {"extra_body": {"top_k": 1}}}),
        (["gsm8k.num_samples=9"], {"set": ["gsm8k.num_samples=9"]}),
    ],
)
def test_a_value_is_that_of_a_plan_file(texts: list[str], found: dict[str, Any]) -> None:
    assert spread_keys({"set": texts}) == found


def test_the_texts_of_a_list_replace_those_of_a_variable() -> None:
    of_variable = {"known_finish_reasons": ["c"], "set": ["limits.known_finish_reasons=a"]}
    assert spread_keys(of_variable) == {"known_finish_reasons": ["a"]}


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(PlanError, match="extra_body is not valid JSON"):
        spread_keys({"set": ["protocol.extra_body=top_k"]})
