"""Find out what a server puts in the place of sampling fields that a request leaves out.

A generation_config.json can set repetition_penalty, top_k and others on a server, so that answers
at temperature 0 are not greedy and two deployments differ although no option differs.
"""

from __future__ import annotations

from serve_eval.evaluation.capabilities.sampling.probing import (
    OtherSampling,
    SideSampling,
    UnlikePolicies,
    compare_with_reference,
    find_unlike_policies,
    probe_defaults,
    put_logged,
    read_logged,
)
from serve_eval.evaluation.capabilities.sampling.sending import (
    NEUTRAL,
    advise,
    choose_sent,
    compare_defaults,
    describe_added,
    describe_defaults,
    describe_left,
    join_routes,
    list_different_kept,
    list_kept,
    list_open,
    name_difference,
    put_kept,
    read_kept,
    to_fields,
    warn_of_defaults,
)

__all__ = [
    "NEUTRAL",
    "SERVER_ADDS",
    "OtherSampling",
    "SideSampling",
    "UnlikePolicies",
    "advise",
    "choose_sent",
    "compare_defaults",
    "compare_with_reference",
    "describe_added",
    "describe_defaults",
    "describe_left",
    "find_unlike_policies",
    "join_routes",
    "list_different_kept",
    "list_kept",
    "list_open",
    "name_difference",
    "probe_defaults",
    "put_kept",
    "put_logged",
    "read_kept",
    "read_logged",
    "to_fields",
    "warn_of_defaults",
]
