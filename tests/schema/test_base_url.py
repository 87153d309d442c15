from __future__ import annotations

import pytest

from serve_eval.errors import PlanError
from serve_eval.schema.base_url import normalise_base_url


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        ("host:8000", "http://host:8000/v1"),
        ("localhost:8000", "http://localhost:8000/v1"),
        ("10.0.0.1:8000", "http://10.0.0.1:8000/v1"),
        ("host", "http://host/v1"),
        ("http://host:8000", "http://host:8000/v1"),
        ("http://host:8000/", "http://host:8000/v1"),
        ("http://host:8000/v1", "http://host:8000/v1"),
        ("http://host:8000/v1/", "http://host:8000/v1"),
        ("host:8000/v1", "http://host:8000/v1"),
        ("https://host/v1/completions", "https://host/v1"),
        ("https://host/v1/chat/completions/", "https://host/v1"),
        ("http://host/completions", "http://host/v1"),
        ("host:8000/v1/v1", "http://host:8000/v1"),
        ("https://host/openai/v1/v1/", "https://host/openai/v1"),
        ("https://host/v1/chat/completions/v1", "https://host/v1"),
        ("https://host/openai/v1", "https://host/openai/v1"),
        ("https://host/api/paas/v4", "https://host/api/paas/v4"),
        ("[::1]:8000", "http://[::1]:8000/v1"),
        ("  host:8000 ", "http://host:8000/v1"),
    ],
)
def test_every_form_that_users_paste_is_resolved(given: str, resolved: str) -> None:
    assert normalise_base_url(given) == resolved
    assert normalise_base_url(resolved) == resolved


def test_an_ipv6_address_without_brackets_is_told_so() -> None:
    with pytest.raises(PlanError, match=r"brackets, as in http://\[::1\]:8000/v1"):
        normalise_base_url("::1:8000")


@pytest.mark.parametrize(
    "given",
    [
        "",
        "http://",
        "ftp://host",
        "http://${HOST}/v1",
        "unix:///socket",
        "http://host:port",
        "http://host:99999",
        "::1:8000",
        "http://::1:8000/v1",
        "http://user:pass@host/v1",
        "http://host/v1?api_key=sk-secret",
    ],
)
def test_what_is_no_address_or_holds_a_secret_is_refused_without_repeating_it(given: str) -> None:
    with pytest.raises(PlanError) as caught:
        normalise_base_url(given)
    assert "sk-secret" not in str(caught.value)
    assert "pass@" not in str(caught.value)
