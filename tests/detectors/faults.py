"""List the injected faults.

There are 2 context servers and 4 generation servers, so each of the latter has a quarter of the
requests, and each pair an eighth.
"""

from __future__ import annotations

from tests.detectors.trial import Fault

SOUND = Fault(name="none: a healthy pair")
FAULTS = (
    Fault(
        name="all generation servers answer half of the requests wrongly from request 100 on",
        faulty={"corrupt_after": 25, "share": 0.5},
    ),
    Fault(name="one generation server of 4 answers wrongly", faulty={"corrupt_after": 0}, only=2),
    Fault(
        name="one pair of a context and a generation server of 8 answers wrongly",
        wrong_pair=("context_0", "generation_1"),
    ),
    Fault(
        name="a tenth of the streams is dropped",
        faulty={"drop_stream": 2, "share": 0.1},
        stream=True,
    ),
    Fault(
        name="one generation server of 4 refuses everything: 400, wrapped in a 500",
        faulty={"error_after": 0},
        only=2,
    ),
    Fault(
        name="the generation servers refuse a tenth of the requests so",
        faulty={"error_after": 3, "share": 0.1},
    ),
    Fault(name="the generation leg takes 0.2 s instead of 0.02 s", faulty={"latency_s": 0.2}),
    Fault(
        name="one generation server of 4 takes 0.2 s instead of 0.02 s",
        faulty={"latency_s": 0.2},
        only=2,
    ),
    Fault(
        name="one generation server of 4 loses the KV cache from request 100 on: empty answers",
        faulty={"kv_loss_after": 25},
        only=2,
    ),
    Fault(
        name="a tenth of the KV caches is lost: empty answers",
        faulty={"kv_loss_after": 0, "share": 0.1},
    ),
)
