"""Keep lm-eval's answers from what a server adds, and warn of those without a text."""

from __future__ import annotations

import logging

from serve_eval.client.client import Client
from serve_eval.evaluation.capabilities.sampling import (
    choose_sent,
    describe_added,
    probe_defaults,
    to_fields,
)


async def replace_defaults(client: Client, *, chat: bool) -> None:
    """Probe what a server adds to requests, and send neutral values in its place, as a run does."""
    endpoint = client.endpoint.with_info(**await client.describe())
    found = await probe_defaults(client, endpoint, chat=chat)
    client.encoder.neutral = to_fields(choose_sent(found, "neutral"))
    if added := describe_added(found):
        logging.getLogger("lm_eval").warning(
            f"the server adds {added} to requests that lack it (generation_config.json?): neutral"
            " values are sent, unless --model_args has server_defaults=keep"
        )


def warn_of_unfinished(count: int, total: int) -> None:
    """Warn of answers that were cut within thoughts, which lm-eval scores as wrong."""
    logging.getLogger("lm_eval").warning(
        f"{count} of {total} answers were cut within the model's thoughts and are empty, so that"
        " they score as wrong: raise the task's max_gen_toks (--gen_kwargs max_gen_toks=N), or"
        " switch thinking off"
    )
