"""Refuse samples whose requests are larger than the limit, before anything is asked."""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.errors import PlanError
from serve_eval.schema import MediaFile, MediaPart, Plan, Sample
from serve_eval.schema.media import media_url

_HINT = (
    "Raise limits.max_request_bytes if the endpoint, and each proxy before it, takes as much (nginx"
    " takes 1 MB unless client_max_body_size says more). Or let the server read the files:"
    " --set connection.send_media=path."
)


def check_sizes(task: str, samples: Sequence[Sample], plan: Plan) -> None:
    """Raise PlanError for samples with media whose requests exceed `max_request_bytes`."""
    most, inline = plan.limits.max_request_bytes, plan.connection.send_media == "inline"
    sizes = ((sample.id, _count_bytes(sample, inline=inline)) for sample in samples)
    large = {name: size for name, size in sizes if size > most}
    if large:
        name = max(large, key=large.__getitem__)
        others = f", and {len(large) - 1} more requests exceed it" if len(large) > 1 else ""
        raise PlanError(
            f"{task}: the request of sample {name} has {large[name]:,} bytes; the limit is"
            f" {most:,}{others}",
            hint=_HINT,
        )


def _count_bytes(sample: Sample, *, inline: bool) -> int:
    """Return the bytes of the media of a sample as they are sent, with its texts if it has any."""
    if isinstance(sample.prompt, str) or not any(turn.media for turn in sample.prompt):
        return 0
    return sum(
        len(turn.text.encode()) + sum(_count_part(part, inline=inline) for part in turn.media)
        for turn in sample.prompt
    )


def _count_part(part: MediaPart, *, inline: bool) -> int:
    if not isinstance(part, MediaFile):
        return len(media_url(part))
    return (part.size + 2) // 3 * 4 if inline else len(part.path)
