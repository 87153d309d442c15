"""Test how a plan says which path it expects."""

from __future__ import annotations

import pytest

from serve_eval.errors import PlanError
from serve_eval.plan.resolve import resolve
from serve_eval.plan.shared_options import read_expected

FILE = {"tasks": ["word_problems"], "expect": {"kv_transfer": True, "speculation": True}}


def test_flags_come_after_the_plan_name_by_name() -> None:
    assert resolve(FILE, {}, {}).plan.expect == FILE["expect"]
    flags = {"expect": read_expected(["speculation=false,prefix_cache", "deterministic=true"])}
    assert resolve(FILE, flags, {}).plan.expect == {
        "kv_transfer": True,
        "speculation": False,
        "prefix_cache": True,
        "deterministic": True,
    }


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ({"kv_transfers": True}, "expect.kv_transfers: unknown part of a path. Did you mean"),
        ({"kv_transfer": "yes"}, "expect: Expected `bool`"),
    ],
)
def test_what_no_run_can_prove_is_refused(expect: object, message: str) -> None:
    with pytest.raises(PlanError) as raised:
        resolve({**FILE, "expect": expect}, {}, {})
    assert message in str(raised.value)


def test_a_flag_takes_true_or_false() -> None:
    with pytest.raises(PlanError, match="expected speculation, speculation=true or"):
        read_expected(["speculation=no"])
