"""Contents of the pages of several stories, with hostile texts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from serve_eval.report.document import make_page
from serve_eval.report.page.content import PageContent
from tests.report.document.made import drift, load, smoke, suite, tools, verify, view, watch

HOSTILE = "</title><script>window.hit = 1</script><img src=x onerror=hit()>\x1b[31m\u202e\ud800"


def make_all(folder: Path) -> Mapping[str, PageContent]:
    """Return the content of each page. `folder` is an empty one."""
    return {
        "suite": make_page(suite.make_documents(HOSTILE, folder)["FAIL"]),
        "load": make_page(load.make_documents(HOSTILE)["FAIL"]),
        "verify": make_page(verify.make_documents(HOSTILE)["two servers"]),
        "smoke": make_page(smoke.make_documents(HOSTILE)["FAIL"]),
        "watch": make_page(watch.make_documents(HOSTILE)["ALARM"]),
        "drift": make_page(drift.make_documents(HOSTILE)["ALARM"]),
        "view": make_page(view.make_documents(HOSTILE)["FAIL"]),
        "tools": make_page(tools.make_documents(HOSTILE)["FAIL"]),
    }


STORIES = ("suite", "load", "verify", "smoke", "watch", "drift", "view", "tools")
