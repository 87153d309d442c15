"""Apply the choices of a protocol that mean the same for every task.

A task is built with its own options first; these choices come on top. Every choice goes into the
fingerprint, so that two results under different choices are never compared by accident.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import UNSET

from serve_eval.errors import PlanError
from serve_eval.plugins import registry
from serve_eval.protocol import chat_template
from serve_eval.protocol.chat_template import Choices, choose_rendering, date_of, prompt_under
from serve_eval.protocol.conversation import HISTORY_THOUGHTS
from serve_eval.protocol.sampling_fields import ROUTE, SCORER_OPTIONS
from serve_eval.schema import (
    ChatRoute,
    Conversation,
    DataRoots,
    Dataset,
    HistoryThoughts,
    Need,
    Override,
    Prompt,
    RecordedBody,
    Route,
    Sample,
    SamplingParams,
    Spec,
    Task,
    is_mutable,
)
from serve_eval.schema.task import LENGTHS, CountTokens, Fit

TASKS = "serve_eval.tasks"


_OF_PROMPTS = ("apply_chat_template", "system_prompt", "tokenizer", "thinking")
"""Choices that make prompts of the texts of a data set, which recorded requests have not."""
OPTIONS: Mapping[str, Any] = typing.get_type_hints(Choices)
"""Names and types of the choices."""
ONLY_IF_SET = (
    "seed",
    "thinking",
    "extra_body",
    "chat_template",
    "add_special_tokens",
    "template_date",
    "suite_exact",
)
"""Protocol fields that are present only if chosen. A result without them was measured without
them."""
OWN_ONLY_IF_SET = (
    "scoring",
    "as_biochatter",
    "fewshot_sampler",
    "code_reading",
    SCORER_OPTIONS,
    ROUTE,
)
"""Fields of individual tasks, and of the connection, that are also present only if chosen, or since
a later version."""
PLACES = ("data_files", LENGTHS)
"""Options that say where the data of a task is, or how long its prompts are at an endpoint; they
have no useful default."""

_OWN_FIELDS = frozenset(
    {
        "model",
        "prompt",
        "messages",
        "stream",
        "stream_options",
        "n",
        "max_tokens",
        "max_completion_tokens",
    }
    | {"temperature", "top_p", "seed", "stop"}
)
"""Request fields that `extra_body` must not set, because options or the client do."""


def build_task(spec: Spec, where: str = "", *, checked: bool = False) -> Task:
    """Return the task of a plan's entry, with its choices applied.

    With `checked`, what a task of ours returns is checked as that of external code is. Raises
    PlanError for an unknown name or option, and for choices that exclude each other.
    Problems of an option start with `where`, a dot and its name.
    """
    task, shared = _build_task(spec, where, checked=checked)
    return apply(task, typing.cast(Choices, shared), where)


def bare_task(spec: Spec) -> Task:
    """Return the task with its own options only. Raises PlanError.

    It scores like the task under the plan's choices, which only decide what is asked.
    """
    return _build_task(spec, spec.name)[0]


def note_route(task: Task, route: ChatRoute) -> Task:
    """Return the task with the route of its prompts in its protocol, unless it is chat's.

    Servers apply other templates and defaults to it.
    """
    if route == "chat" or not task.chat:
        return task
    return replace(task, protocol={**task.protocol, ROUTE: route})


def _build_task(spec: Spec, where: str, *, checked: bool = False) -> tuple[Task, dict[str, Any]]:
    """Return the task with its own options, and the shared options."""
    make = registry.load(TASKS, spec.name, checked=checked)
    if spec.options.get("max_tokens") == "auto":
        raise PlanError(
            f"{where}.max_tokens: auto is a word of the command line of serve-eval run alone:"
            " it depends on earlier runs, and this limit is part of a protocol",
            hint="Give a number, such as the one that a run with the word named.",
        )
    given = registry.check_options(make, spec.options, where, also=OPTIONS)
    own = registry.options_of(make)
    task: Task = make(**{name: value for name, value in given.items() if name in own})
    if task.name != spec.name:  # file names contain the task name
        raise PlanError(
            f"made the task {task.name!r} instead of a task of that name:"
            f" {sys.modules[make.__module__].__file__}"
        )
    return task, {
        name: value for name, value in given.items() if name not in own or name == "suite_exact"
    }


def find_usual_repeats(name: str) -> int | None:
    """Return how often a prompt of a task is asked where models are compared by it.

    None if one answer is usual. The file of a task can name another number.
    """
    module = sys.modules[registry.load(TASKS, name).__module__]
    usual = getattr(module, "USUAL_REPEATS", None)
    return usual if isinstance(usual, int) else None


def usual_task(spec: Spec, **options: object) -> Task:
    """Return the task with default options, plus required ones and `options`.

    Options that locate its files count as required. So do all options of a user's own cases,
    because each of them selects the cases.
    """
    own = registry.options_of(registry.load(TASKS, spec.name))
    needed = {
        name: spec.options[name]
        for name, option in own.items()
        if name in spec.options and (option.required or name in PLACES or is_mutable(spec.name))
    }
    return build_task(Spec(name=spec.name, options={**needed, **options}))


def apply(task: Task, given: Choices, where: str = "") -> Task:
    """Return the task under these choices.

    Pure, except that it reads the chat template. Raises PlanError for choices that exclude each
    other, with each problem starting with `where`.
    """
    chat = given.get("apply_chat_template", task.chat)
    exact = given.get("suite_exact", False)
    _check(task, given, where, chat=chat)
    # The stop strings of a base model would cut the answers of a chat model.
    drops_stops = chat and not task.chat and not exact and given.get("stop") is None
    sampling = _sampling(task.sampling, given, drops_stops=drops_stops)
    extra = {**task.extra, **(given.get("extra_body") or {})}
    if "truncate_prompt_tokens" in given:
        extra["truncate_prompt_tokens"] = given["truncate_prompt_tokens"]
    render, extra, templating = choose_rendering(given, extra, chat=chat, exact=exact)
    chosen = {
        **templating,
        "seed": sampling.seed,
        "extra_body": given.get("extra_body") or None,
        "suite_exact": exact or None,
    }
    protocol = {
        **task.protocol,
        "apply_chat_template": chat,
        "system_prompt": given.get("system_prompt"),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "stop": list(sampling.stop),
        "truncate_prompt_tokens": extra.get("truncate_prompt_tokens"),
        **{name: value for name, value in chosen.items() if value is not None},
    }
    thoughts = given.get("history_thoughts") if HISTORY_THOUGHTS in protocol else None
    if thoughts is not None:
        protocol[HISTORY_THOUGHTS] = thoughts
    system, changes = given.get("system_prompt") or "", chat != task.chat or render is not None
    own = _override(given, drops_stops=drops_stops)

    def load(roots: DataRoots, wanted: int) -> Dataset:
        dataset = task.load(roots, wanted)
        shared: dict[int, Override | None] = {}

        def rebuild(sample: Sample) -> Sample:
            if sample.recorded is not UNSET:
                return replace(sample, recorded=override_fields(sample.recorded, given))
            old = sample.override
            if old is not None and id(old) not in shared:
                shared[id(old)] = own(old)
            try:
                prompt = prompt_under(sample.prompt, chat=chat, system_prompt=system, render=render)
            except PlanError as error:
                raise PlanError(
                    [f"{task.name}: {problem}" for problem in error.problems], hint=error.hint
                ) from None
            talk = _set_thoughts(sample.conversation, thoughts)
            override = None if old is None else shared[id(old)]
            return replace(sample, prompt=prompt, override=override, conversation=talk)

        try:
            return replace(dataset, samples=[rebuild(sample) for sample in dataset.samples])
        finally:
            if isinstance(render, chat_template.Rendering):
                render.close()

    longer = sampling.max_tokens - task.sampling.max_tokens

    judged, context = given.get("acceptance_length"), task.context_tokens
    if context is not None:
        context += longer
    touched = (
        changes
        or bool(system)
        or drops_stops
        or thoughts is not None
        or bool({"max_tokens", "stop", "extra_body"} & given.keys())
        or (task.recorded and bool({"temperature", "top_p", "seed"} & given.keys()))
    )
    return replace(
        task,
        sampling=sampling,
        extra={name: value for name, value in extra.items() if value is not None},
        protocol=protocol,
        chat=chat,
        context_tokens=context,
        load=load if touched else task.load,
        fit=_fit_under(
            task,
            partial(prompt_under, chat=chat, system_prompt=system, render=render),
            longer,
        ),
        requires=task.requires if judged is None else task.requires | {Need.TOKENS_PER_STEP},
        acceptance_length=judged,
    )


def _fit_under(task: Task, under: Callable[[Prompt], Prompt], longer: int) -> Fit | None:
    """Return `fit` of a task for prompts as they are sent, with answers that much `longer`."""
    if (fit := task.fit) is None:
        return None

    def fit_sent(count: CountTokens, context: int | None, roots: DataRoots) -> Mapping[str, object]:
        room = None if context is None else context - longer
        return fit(lambda prompt: count(under(prompt)), room, roots)

    return fit_sent


def _override(given: Choices, *, drops_stops: bool) -> Callable[[Override], Override]:
    """Return what remains of a sample's override: choices for the whole task take precedence."""
    chosen = given.get("extra_body") or {}

    def own(old: Override) -> Override:
        return Override(
            max_tokens=None if "max_tokens" in given else old.max_tokens,
            stop=None if drops_stops or given.get("stop") is not None else old.stop,
            extra={name: value for name, value in old.extra.items() if name not in chosen},
        )

    return own


_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Names of the limit of tokens in the requests of the three routes."""


def override_fields(body: RecordedBody, given: Choices) -> RecordedBody:
    """Return a recorded body with the fields that a plan sets; None leaves a field out."""
    chosen: dict[str, object] = {
        name: value
        for name, value in given.items()
        if name in ("temperature", "top_p", "seed", "stop", "truncate_prompt_tokens")
    }
    if "max_tokens" in given:
        usual = _LIMITS[2] if body.route is Route.RESPONSES else _LIMITS[0]
        name = next((one for one in _LIMITS if one in body.fields), usual)
        chosen[name] = given["max_tokens"]
    fields = {**body.fields, **chosen, **(given.get("extra_body") or {})}
    kept = {name: value for name, value in fields.items() if value is not None}
    return RecordedBody(route=body.route, fields=kept)


def _check(task: Task, given: Choices, where: str, *, chat: bool) -> None:
    problems = []
    begins = (
        task.prompt_logprobs and "prefix" in task.protocol
    )  # the tokenizer files name the prefix
    if given.get("tokenizer") is not None and not chat and not begins:
        problems.append("tokenizer: renders a chat template; add apply_chat_template: true")
    if given.get("tokenizer") is None or not chat:
        lone = [
            name for name in ("add_special_tokens", "template_date") if given.get(name) is not None
        ]
        problems += [
            f"{name}: needs tokenizer, because it applies to a template rendered by serve-eval"
            for name in lone
        ]
    problems += _refuse_for_samples(task, given, chat=chat)
    if given.get("thinking") is not None and not chat:
        problems.append("thinking: is a switch of the chat template; add apply_chat_template: true")
    if task.prompt_logprobs and chat:
        problems.append("apply_chat_template: log-probabilities need a plain text")
    if task.prompt_logprobs and given.get("acceptance_length") is not None:
        problems.append("acceptance_length: needs answers, and this task requests none")
    taken = sorted(_OWN_FIELDS & (given.get("extra_body") or {}).keys())
    if taken:
        problems.append(
            f"extra_body: cannot set {', '.join(taken)}; use the options of the task instead"
        )
    if (day := given.get("template_date")) is not None and date_of(day) is None:
        problems.append(f"template_date: {day!r} is not a date such as 2026-11-20")
    if problems:
        raise PlanError([f"{where}.{problem}" for problem in problems])


def _refuse_for_samples(task: Task, given: Choices, *, chat: bool) -> Iterator[str]:
    """Yield the choices that do not fit conversations or recorded requests."""
    if HISTORY_THOUGHTS in task.protocol and (not chat or given.get("tokenizer") is not None):
        name = "tokenizer" if chat else "apply_chat_template"
        yield f"{name}: the server renders conversations, which grow by its answers"
    if task.recorded:
        for name in _OF_PROMPTS:
            if given.get(name) is not None:
                yield f"{name}: requests are sent as they were recorded; set fields by extra_body"


def _set_thoughts(
    talk: Conversation | None, thoughts: HistoryThoughts | None
) -> Conversation | None:
    return talk if talk is None or thoughts is None else replace(talk, thoughts=thoughts)


def _sampling(base: SamplingParams, given: Choices, *, drops_stops: bool) -> SamplingParams:
    """Return the sampling of a task. A temperature or top_p of None is omitted from requests.

    Some servers refuse these fields. Raises PlanError for invalid values.
    """
    stop: Sequence[str] = () if drops_stops else base.stop
    if (chosen := given.get("stop")) is not None:
        stop = chosen
    sampling = replace(
        base,
        max_tokens=given.get("max_tokens", base.max_tokens),
        temperature=given.get("temperature", base.temperature),
        top_p=given.get("top_p", base.top_p),
        seed=given.get("seed", base.seed),
        stop=tuple(stop),
    )
    top_p = 1.0 if sampling.top_p is None else sampling.top_p
    if sampling.max_tokens < 1 or (sampling.temperature or 0.0) < 0.0 or not 0.0 < top_p <= 1.0:
        raise PlanError(
            "max_tokens must be 1 or more, temperature 0 or more, top_p above 0 and at most 1"
        )
    if "" in sampling.stop:
        raise PlanError(
            "stop: an empty text matches at the start of every answer and would cut it to nothing"
        )
    return sampling
