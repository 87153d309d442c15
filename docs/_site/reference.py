"""Write the reference from the code: commands, options of plans and plugins, and the library."""

from __future__ import annotations

from collections.abc import Iterator

import serve_eval
from serve_eval.cli import app
from serve_eval.cli._commands import walk
from serve_eval.cli._described import describe_plugin, describe_task
from serve_eval.plugins import extensions, registry
from serve_eval.protocol.shared import TASKS


def write_pages() -> Iterator[tuple[str, str]]:
    """Yield the name and text of each page."""
    yield "commands", _write_commands()
    for package, title in extensions.KINDS.items():
        yield title, _write_plugins(package, title)
    yield "library", _write_library()


def list_commands() -> Iterator[tuple[str, str]]:
    """Yield each command, such as `references show`, with its whole help."""
    for words, _ in walk():
        made = app.make_command(*words)
        context = made.context_class(made, info_name=" ".join(("serve-eval", *words)))
        yield " ".join(words), made.full_help(context)


def _write_commands() -> str:
    lines = ["# Commands", "", "The help of each command, with all of its options.", ""]
    for name, text in list_commands():
        lines += [f"## {name}", "", *_fence(text)]
    return "\n".join(lines)


def _write_plugins(package: str, title: str) -> str:
    lines = [
        f"# {title.capitalize()}",
        "",
        f"`serve-eval data list {title} NAME` prints each entry.",
        "",
    ]
    for name in registry.names(package):
        told = describe_task(name) if package == TASKS else describe_plugin(package, name)
        lines += [f"## {name}", "", *_fence("\n".join(told))]
    return "\n".join(lines)


def _write_library() -> str:
    lines = [
        "# Library",
        "",
        "The names that `import serve_eval` has. [Python API](../extending.md)",
    ]
    lines += ["has examples.", ""]
    for name in sorted(serve_eval.__all__):
        value = getattr(serve_eval, name)
        kind = "class" if isinstance(value, type) else "function" if callable(value) else "data"
        lines += [f"## {name}", "", "```{eval-rst}", f".. auto{kind}:: serve_eval.{name}"]
        if kind == "class":
            lines += ["   :members:", "   :undoc-members:"]
        lines += ["```", ""]
    return "\n".join(lines)


def _fence(text: str) -> list[str]:
    return ["```text", text.rstrip(), "```", ""]
