"""The configuration of Sphinx; `build.py` copies the pages and calls it."""

from __future__ import annotations

import serve_eval

project = "serve-eval"
author = "The serve-eval authors"
project_copyright = "The serve-eval authors. Apache-2.0"
version = release = serve_eval.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_reredirects"]
highlight_language = "text"
html_theme = "furo"
html_title = f"serve-eval {version}"
html_show_sphinx = False
html_copy_source = False
copybutton_prompt_text = "$ "
myst_heading_anchors = 4
autodoc_typehints = "signature"
default_role = "code"
autodoc_member_order = "bysource"
suppress_warnings = ["myst.header"]

REPLACED = {
    "architecture": "conventions testing",
    "check": "load tools workers",
    "ci": "moving-a-test pytest suites",
    "clusters": "kubernetes scale shards slurm",
    "compare": "regression-checks",
    "diagnose": "bisect diagnosis known-faults real-faults",
    "extending": "adding-a-task events python-api schemas",
    "getting-started": "completion doctor faq init",
    "launching": "embedded-model launched-servers",
    "method": "assumptions",
    "own-questions": "cases code judges lm-eval scorers",
    "requests": "endpoints media protocols",
    "run": "collect page run-folder show view",
    "tasks": "datasets",
    "verify": "path-proof smoke",
    "watch": "drift",
}
"""From a page to the pages that stood in its place before the first release."""
redirects: dict[str, str] = {
    old: f"{page}.html" for page, pages in REPLACED.items() for old in pages.split()
}
