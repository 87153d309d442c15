"""Write a starter plan with comments, from what an endpoint tells about itself."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from serve_eval.client.client import Client
from serve_eval.client.connection import connect
from serve_eval.errors import EndpointError, PlanError
from serve_eval.evaluation.capabilities import features
from serve_eval.evaluation.capabilities.features import prompt_logprobs
from serve_eval.evaluation.capabilities.probe_request import ping, send_probe
from serve_eval.frozen import freeze
from serve_eval.report.document import Conclusion, Document, Statement, make_header
from serve_eval.schema import REHEARSED, Ability, Endpoint, Failure, Need, Plan, is_stand_in
from serve_eval.shell_words import quote_path, quote_word
from serve_eval.whole_file import write_named_file

TIMEOUT_S = 60.0
"""Longest wait for one answer: a starter plan is written without an endpoint that hangs."""


@freeze
class EndpointFacts:
    """Hold the answers of an endpoint about itself, and its abilities.

    `problem` says why nothing is known ("": something is). `abilities` are in the order of asking.
    """

    models: tuple[str, ...] = ()
    server: str | None = None
    version: str | None = None
    context_tokens: int | None = None
    abilities: tuple[Ability, ...] = field(default_factory=tuple)
    problem: str = ""

    def can(self, need: Need) -> bool | None:
        """Return whether the endpoint can do something; None if that is not known."""
        return next((one.works for one in self.abilities if one.need == need), None)


async def ask_facts(plan: Plan, environ: Mapping[str, str] = os.environ) -> EndpointFacts:
    """Return what the endpoint of a plan tells about itself, with a few short requests.

    An endpoint that does not answer is a problem in the result, not an error. Raises PlanError for
    an invalid connection.
    """
    limits = replace(plan.limits, connect_timeout_s=5.0, sample_timeout_s=TIMEOUT_S)
    limits = replace(limits, outage_timeout_s=0.0, stall_timeout_s=TIMEOUT_S, max_attempts=1)
    plan = replace(plan, limits=limits)
    base_url = str(plan.launcher.options["base_url"])
    try:
        async with connect(plan, Endpoint(base_url=base_url, model=plan.model), environ) as client:
            listed = await client.models()
            models = () if isinstance(listed, Failure) else tuple(listed)
            if isinstance(listed, Failure) and listed.status is None:
                return EndpointFacts(problem=listed.message)
        model = plan.model or next(iter(models), None)
        async with connect(plan, Endpoint(base_url=base_url, model=model), environ) as client:
            return await _ask(client, models, model)
    except EndpointError as error:
        return EndpointFacts(problem=str(error))


async def _ask(client: Client, models: tuple[str, ...], model: str | None) -> EndpointFacts:
    told = await client.describe()
    abilities = [await _try_kind(client, chat=chat) for chat in (True, False)]
    chat, completions = (one.works for one in abilities)
    if completions:
        abilities.append((await prompt_logprobs(client))[0])
    if chat:
        abilities += [await features.tools(client), await features.images(client)]
    server, version = told.get("server"), told.get("version")
    return EndpointFacts(
        models=models,
        server=server if isinstance(server, str) else None,
        version=version if isinstance(version, str) else None,
        context_tokens=await client.context_tokens(),
        abilities=tuple(abilities),
        problem="" if chat or completions else abilities[1].seen or "no kind of request works",
    )


async def _try_kind(client: Client, *, chat: bool) -> Ability:
    """Return whether chat requests, or requests with plain text, are answered."""
    result = await send_probe(client, ping(chat))
    failed = isinstance(result, Failure)
    return Ability(
        need=Need.CHAT if chat else Need.COMPLETIONS,
        works=not failed,
        seen=result.message if isinstance(result, Failure) else "answers",
    )


NO_MODEL = "MODEL"
"""Stands for the name of a model that is not known."""
WORDS = {
    Need.CHAT: "chat",
    Need.COMPLETIONS: "completions",
    Need.PROMPT_LOGPROBS: "prompt log-probabilities",
    Need.TOOLS: "tool calls",
    Need.IMAGES: "images",
}
"""Words for what an endpoint can do."""
_CHARACTERS_OF_REASON = 70
TASKS = """\
tasks:
  - word_problems              # generated here, so it needs no data set
  # - gsm8k                    # first: serve-eval data fetch gsm8k -o data
  # - mmlu: {num_fewshot: 5}   # options: serve-eval data list tasks mmlu
# cases: my-cases.yaml         # your own questions: serve-eval data cases new my-cases.yaml
# dataset_root: data           # the folder that data fetch filled
# limit: 100                   # a random subset of each task, for a first look
"""
_VERDICT = """\
# Until there is a reference, print values without a verdict. To take one, from this endpoint only
# if you know it to be sound, since it passes against itself:
#   serve-eval references take {file}
# Then remove this line, and let the next one begin with references_dir.
allow_missing_reference: true
# references_dir: my-references
# verdict: {{noninferiority: {{margin: 1.0}}}}   # rules: serve-eval data list verdicts

limits:
  concurrency: 64              # requests in flight, or auto
# output_dir: outputs/first    # default outputs/<time>_<model>
"""


ASK_BRIEFLY = (
    "  # max_tokens: 2048           # for models that think before they answer",
    "  # system_prompt: Be brief.",
)
PROTOCOL = ("protocol:", "  apply_chat_template: false   # true: send chat requests", *ASK_BRIEFLY)
"""The protocol for an endpoint about which nothing is known."""


def write_starter_plan(facts: EndpointFacts, base_url: str, model: str | None, file: Path) -> str:
    """Return the text of a plan file, with what the endpoint told in comments."""
    lines = [
        f"# A starter plan. Run it: serve-eval run {file}",
        "#",
        *(f"# {line}" for line in describe_facts(facts, base_url)),
        "",
        *_list_address(facts, base_url, model),
        "",
    ]
    return "\n".join([*lines, TASKS, *_list_protocol(facts), "", write_verdict(file)])


def write_verdict(file: Path) -> str:
    """Return the last part of a plan, about references and limits."""
    return _VERDICT.format(file=file)


def describe_facts(facts: EndpointFacts, base_url: str) -> Iterator[str]:
    """Yield what was found about an endpoint."""
    if is_stand_in(facts.version):
        yield REHEARSED
    if facts.problem:
        yield f"The endpoint {base_url} could not be asked: {shorten(facts.problem)}"
        yield "Correct base_url and model, or write the plan again with serve-eval setup init."
    known = " ".join(part for part in (facts.server, facts.version) if part)
    if not facts.problem or known or facts.models:
        context = f"{facts.context_tokens} tokens" if facts.context_tokens else "not told"
        yield _row("server", shorten(known) or "not told")
        yield _row("models", shorten(", ".join(facts.models)) or "none listed")
        yield _row("context", context)
    for one in facts.abilities:
        word = WORDS.get(Need(one.need), one.need)
        state = {True: "yes", False: "no", None: "unknown"}[one.works]
        reason = "" if one.works else f": {shorten(one.seen)}"
        yield _row(word, f"{state}{reason}")


def _row(name: str, text: str) -> str:
    return f"{name:<24} {text}"


def _list_address(facts: EndpointFacts, base_url: str, model: str | None) -> Iterator[str]:
    chosen = model or next(iter(facts.models), NO_MODEL)
    note = "   # write the name of the model" if chosen == NO_MODEL else ""
    yield f"model: {_quote(chosen)}{note}"
    for other in facts.models:
        if other != chosen:
            yield f"# model: {_quote(other)}"
    yield f"base_url: {base_url}"


def _list_protocol(facts: EndpointFacts) -> Iterator[str]:
    """Yield the protocol of all tasks: chat if only that works, else plain text."""
    yield "protocol:"
    chat, text = facts.can(Need.CHAT), facts.can(Need.COMPLETIONS)
    if chat and not text:
        yield "  apply_chat_template: true    # the endpoint answers chat requests only"
    else:
        why = " (they work here)" if chat else ""
        yield f"  apply_chat_template: false   # true: send chat requests{why}"
    yield from ASK_BRIEFLY


def save_starter_plan(file: Path, text: str, *, force: bool) -> None:
    """Write a plan file. Raises PlanError if it exists and `force` is not set."""
    try:
        if force:
            write_named_file(file, text.encode())
        else:
            with file.open("x", encoding="utf-8") as out:
                out.write(text)
    except FileExistsError as error:
        raise PlanError(
            f"{file} already exists", hint="Choose another name, or replace it with --force."
        ) from error
    except OSError as error:
        raise PlanError(f"{file}: cannot be written: {error.strerror}") from error


def _quote(text: str) -> str:
    """Return a text in quotes that YAML reads as it is, on one line."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def shorten(text: str) -> str:
    """Return the beginning of a text, on one line without control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _CHARACTERS_OF_REASON else f"{line[: _CHARACTERS_OF_REASON - 3]}..."


REFERENCE = "by a reference of serve-eval, or by your own; the plan says how to take one"
_LABELS = {"Fill in or check:": "fill in", "The plan leaves out:": "left out"}
"""Labels of the lists at the top of a plan that was made from a recipe."""


@freeze
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
        "init",
        f"serve-eval setup init {quote_word(base_url)}",
        make_header(0),
        conclusions=[
            Conclusion(
                str(file),
                "WRITTEN",
                figures="to fill in" if chosen == NO_MODEL else f"for {shorten(chosen)}",
                statements=[*_describe_facts(facts), Statement("verdict", REFERENCE)],
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
        yield Statement("server", shorten(known) or "not told")
        yield Statement("models", shorten(", ".join(facts.models)) or "none listed")
        yield Statement("context", context)
    named = [(WORDS.get(Need(one.need), one.need), one) for one in facts.abilities]
    if works := [word for word, one in named if one.works]:
        yield Statement("works", ", ".join(works))
    for word, one in named:
        if not one.works:
            label = "unknown" if one.works is None else "lacks"
            yield Statement(label, f"{word}: {shorten(one.seen)}")


def make_recipe_document(source: Path, plans: Sequence[RecipePlan]) -> Document:
    """Return the document of the plans of a recipe: what to fill in comes first."""
    first = quote_path(plans[0].file)
    return Document(
        "init",
        f"serve-eval setup init --from {quote_path(source)}",
        make_header(0),
        conclusions=[
            Conclusion(
                str(one.file),
                "WRITTEN",
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
            rows.append(Statement(label, text, keep=label == "fill in"))
    yield from sorted(rows, key=lambda row: row.label != "fill in")
