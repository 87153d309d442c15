"""The configuration of Sphinx; `build.py` copies the pages and calls it."""

from __future__ import annotations

import serve_eval

project = "serve-eval"
author = "The serve-eval authors"
project_copyright = "The serve-eval authors. Apache-2.0"
version = release = serve_eval.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
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
