"""Ask an endpoint that runs already whether it answers, for tests that send their own requests."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.schema import Endpoint, Plan

_WITHOUT_LIST = (404, 405)
"""Statuses of older orchestrators, which answer but do not list their models."""


async def ask_endpoint(plan: Plan) -> Endpoint:
    """Return the endpoint of a plan, with its model: the only one, or that of the reference.

    It is asked for its models once. If the plan names the model, it need not list any. Raises
    EndpointError if it does not answer.
    """
    from serve_eval.client.connection import connect
    from serve_eval.client.preflight import pick_model, refuse_listing
    from serve_eval.evaluation.endpoint.launch import launch
    from serve_eval.schema import Failure

    async with (
        launch(plan, (), Path()) as endpoint,
        connect(plan, endpoint, os.environ) as client,
    ):
        served = await client.models()
        if not isinstance(served, Failure):
            picked = pick_model(served, plan.reference_model)
            return replace(endpoint, model=endpoint.model or picked)
        if plan.model is None or served.status not in _WITHOUT_LIST:
            await refuse_listing(client, served)
        return endpoint
