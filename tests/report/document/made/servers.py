"""Documents of servers that are kept up, in each state, and of those that were stopped."""

from dataclasses import replace

from serve_eval.schema import Endpoint
from serve_eval.workflows.servers import Held, make_document


def make_documents(text="some text"):
    """Return a document for each outcome, with `text` where a server or a user wrote it."""
    ready = Held(
        id="0a1b2c3d",
        state="ready",
        launcher="embedded",
        model=text,
        pid=1,
        began="1",
        since="2026-11-30T07:34:50+00:00",
        log_dir=text,
        patience_s=1.0,
        started_in=text,
        endpoint=Endpoint(base_url="http://host:1/v1", model=text),
    )
    ended = replace(ready, id="1", state="ended", endpoint=None, error="\n".join([text] * 30))
    many = [replace(ready, id=str(i)) for i in range(40)]
    return {
        "READY": make_document([ready]),
        "ENDED": make_document([ended]),
        "many": make_document([*many, ended, replace(ready, id="2", state="starting")]),
        "NO SERVERS": make_document([]),
        "STOPPED": make_document([ready, ended], stopped=True),
    }
