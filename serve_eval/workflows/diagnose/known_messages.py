"""Known messages of servers that refuse or fail, with their reasons and what to change."""

from __future__ import annotations

import re

from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence

_KNOWN = (
    (
        (
            r"maximum context length|max_model_len|max_seq_len|max_num_tokens|prompt is too"
            r" long|should not exceed"
        ),
        "the prompt is longer than the server accepts",
        ("trtllm-serve ... --max_seq_len N --max_num_tokens N", "--set {task}.num_fewshot=0"),
    ),
    (
        r"max_completion_tokens",
        "the server requires the other name of max_tokens",
        ("--set connection.max_tokens_field=max_completion_tokens",),
    ),
    (
        (
            r"extra_forbidden|Extra inputs are not permitted|[Uu]nknown"
            r" (?:field|parameter)|[Uu]nsupported (?:field|param)"
        ),
        "the server rejects a field of the request",
        ("--set {task}.truncate_prompt_tokens=null", "--set {task}.temperature=null"),
    ),
    (
        (
            r"Input should be|parameter=\w+, value=|(?:[Ii]nvalid|[Uu]nsupported) value"
            r"|must be (?:at least|at most|between|non-)"
        ),
        "the server knows the field and rejects its value",
        ("--set {task}.OPTION=VALUE, or another value in protocol.extra_body",),
    ),
    (
        r"^HTTP 40[13]\b",
        "the key is missing or wrong",
        ("export OPENAI_API_KEY=...", "--api-key-env NAME"),
    ),
    (
        r"^HTTP 404\b.*model|model .*(?:not found|does not exist)",
        "the server has no model of that name",
        ("--model NAME, as curl BASE_URL/models lists it",),
    ),
    (
        r"^HTTP 404\b|^HTTP 405\b",
        "the route does not exist: the base URL or the kind of endpoint is wrong",
        ("--base-url URL", "--set protocol.apply_chat_template=true"),
    ),
    (
        r"^HTTP 429\b",
        "the server rejects this many requests",
        ("--set limits.rate_limit=R", "--concurrency {concurrency}"),
    ),
    (
        r"No \d+ servers available|Cluster is not ready",
        "the orchestrator had no worker available",
        ("check curl BASE_URL/cluster_info and the logs of the workers",),
    ),
    (
        r"finished early|Invalid disaggregated params in context phase",
        "a 1.2 orchestrator fails if the context server finishes an answer",
        ("update trtllm-serve", "--set {task}.stop=[]"),
    ),
    (
        r"ended without an answer: finish_reason",
        "the server broke the generation off",
        ("read the server's log of that time",),
    ),
    (
        r"which is not read, may hold it|different texts in its fields|has two texts",
        "the server puts the text into a field of its own, which OpenAI's clients do not read",
        ("serve-eval smoke URL", "the options of the server or gateway that form its answers"),
    ),
    (
        r"an error (?:object|within|in place)|status of an error|event that names an error",
        "the server answered with an error under HTTP 200",
        ("read the server's log of that time",),
    ),
    (
        r"lost|empty stream|stream .*(?:ended|without)",
        "a stream ended without its answer",
        ("--set limits.stream=false",),
    ),
    (
        r"^no connection within|refused",
        "no server responds at that address",
        ("--base-url URL", "read the server's log"),
    ),
)
"""Pattern of a message, reason, and changes, in which {task} and {concurrency} are filled in."""


def find_known(run: Evidence, task: TaskEvidence, message: str) -> tuple[str, tuple[str, ...]]:
    """Return the reason of a message and what to change, or empty ones if it is unknown."""
    told = None if run.last.limits is None else run.last.limits.concurrency
    fewer = max(1, told // 4) if isinstance(told, int) else 8
    for pattern, reason, change in _KNOWN:
        if re.search(pattern, message):
            return reason, tuple(one.format(task=task.word, concurrency=fewer) for one in change)
    return "", ()
