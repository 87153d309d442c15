"""Make the document of a plan that was written: its file, what was found, what comes next. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from serve_eval.report.document import Conclusion, Document, Statement, make_header
from serve_eval.schema import REHEARSED, Need, is_stand_in
from serve_eval.shell_words import quote_path, quote_word
from serve_eval.workflows.init.starter_plan import NO_MODEL, WORDS, EndpointFacts, shorten

REFERENCE = "it needs a reference; the plan says how to take one from an endpoint known to be sound"
_LABELS = {"Fill in or check:": "fill in", "The plan leaves out:": "left out"}
"""Labels of the lists at the top of a plan that was made from a recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipePlan:
    """A plan that was written from a recipe.

    `comments` are the lines at its top, `needs` the nodes that it needs, and `refused` says why a
    run would be refused; "" if nothing is known.
    """

    file: Path
    comments: Sequence[str]
    needs: str = ""
    refused: str = ""


def make_document(facts: EndpointFacts, base_url: str, model: str | None, file: Path) -> Document:
    """Return the document of a starter plan: the endpoint, and the next commands."""
    chosen = model or next(iter(facts.models), NO_MODEL)
    plan = quote_path(file)
    commands = [f"serve-eval run {plan} --dry-run", f"serve-eval run {plan}"]
    warnings = []
    if facts.problem:
        warnings.append(
            f"the endpoint {base_url} could not be asked: {shorten(facts.problem)}. Correct"
            f" base_url and model in {file}, or write it again with serve-eval setup init"
        )
        commands = commands[:1]
    else:
        commands.insert(0, f"serve-eval smoke {quote_word(base_url)}")
    return Document(
        story="init",
        command=f"serve-eval setup init {quote_word(base_url)}",
        header=make_header(0),
        conclusions=[
            Conclusion(
                name=str(file),
                outcome="WRITTEN",
                figures="to fill in" if chosen == NO_MODEL else f"for {shorten(chosen)}",
                statements=[*_describe_facts(facts), Statement(label="verdict", text=REFERENCE)],
            )
        ],
        model="" if chosen == NO_MODEL else chosen,
        endpoint=base_url,
        notice=REHEARSED if is_stand_in(facts.version) else "",
        warnings=warnings,
        commands=commands,
    )


def _describe_facts(facts: EndpointFacts) -> Iterator[Statement]:
    """Yield what was found about an endpoint."""
    known = " ".join(part for part in (facts.server, facts.version) if part)
    if not facts.problem or known or facts.models:
        context = f"{facts.context_tokens} tokens" if facts.context_tokens else "not told"
        yield Statement(label="server", text=shorten(known) or "not told")
        yield Statement(label="models", text=shorten(", ".join(facts.models)) or "none listed")
        yield Statement(label="context", text=context)
    named = [(WORDS.get(Need(one.need), one.need), one) for one in facts.abilities]
    if works := [word for word, one in named if one.works]:
        yield Statement(label="works", text=", ".join(works))
    for word, one in named:
        if not one.works:
            label = "unknown" if one.works is None else "lacks"
            yield Statement(label=label, text=f"{word}: {shorten(one.seen)}")


def make_recipe_document(source: Path, plans: Sequence[RecipePlan]) -> Document:
    """Return the document of the plans of a recipe: what to fill in comes first."""
    first = quote_path(plans[0].file)
    return Document(
        story="init",
        command=f"serve-eval setup init --from {quote_path(source)}",
        header=make_header(0),
        conclusions=[
            Conclusion(
                name=str(one.file),
                outcome="WRITTEN",
                figures=one.needs,
                statements=list(_describe_comments(one.comments)),
            )
            for one in plans
        ],
        noun="plans",
        warnings=[
            f"{one.file}: a run would be refused: {one.refused}" for one in plans if one.refused
        ],
        commands=[
            f"serve-eval run {first} --dry-run",
            f"serve-eval run {first} --rehearse",
            f"serve-eval run {first}",
        ],
    )


def _describe_comments(lines: Sequence[str]) -> Iterator[Statement]:
    """Yield the comments at the top of a plan: what to fill in, where it is from, what is left."""
    rows, label = [], "from"
    for line in lines:
        label = _LABELS.get(line, label if line.startswith("* ") else "from")
        if line not in _LABELS:
            text = line.removeprefix("* ").removeprefix("From ")
            rows.append(Statement(label=label, text=text, keep=label == "fill in"))
    yield from sorted(rows, key=lambda row: row.label != "fill in")
