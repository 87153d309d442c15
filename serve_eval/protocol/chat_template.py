"""Render prompts by chat templates from a local folder, as transformers renders them.

A template sees and can do what transformers' `apply_chat_template` allows: the messages, the
special tokens, the given variables, `raise_exception`, `strftime_now` and `tojson`, with
`trim_blocks` and `lstrip_blocks`. It runs in jinja2's immutable sandbox, in its own process with a
time limit. No code from the folder is imported.
"""

from __future__ import annotations

import hashlib
import json
import typing
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypedDict

from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.processes.bounded_call import Apart, Unfinished
from serve_eval.schema import HistoryThoughts, Message, Prompt

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment


RENDERING_S = 10.0
"""Seconds to compile a template, and to render each prompt."""
MEMORY_BYTES = 4 << 30
"""Address space of the rendering process."""
MOST_TEMPLATE, MOST_RENDERED = 1 << 19, 32 << 20
"""Maximum characters of a template (long ones take seconds to parse) and of a prompt: far above
those of any model."""
_RAISED = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)
"""Errors that templates raise in addition to those of jinja2."""
_NONE: Mapping[str, object] = {}
JINJA_FILE = "chat_template.jinja"


@freeze
class ChatTemplate:
    """A template with the special tokens that it may name, such as `bos_token`."""

    text: str
    tokens: Mapping[str, str]
    file: Path

    @property
    def sha256(self) -> str:
        """The checksum of everything that decides what it renders."""
        return hashlib.sha256(
            json.dumps([self.text, dict(sorted(self.tokens.items()))]).encode()
        ).hexdigest()


def read(folder: Path) -> ChatTemplate:
    """Return the template of a model's folder.

    Reads chat_template.jinja, else the template in tokenizer_config.json. Raises PlanError if there
    is none or a file cannot be read.
    """
    config = json_of(folder / CONFIG_FILE)
    named = read_texts({**json_of(folder / TOKENS_FILE), **config})
    tokens = {name: text for name, text in named.items() if text}
    try:
        if (file := folder / JINJA_FILE).exists():
            return ChatTemplate(text=file.read_text(encoding="utf-8"), tokens=tokens, file=file)
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{file}: cannot be read: {error}") from error
    found = config.get("chat_template")
    if isinstance(found, list):  # named templates: "default" is for plain chats
        found = next(
            (
                one.get("template")
                for one in found
                if isinstance(one, dict) and one.get("name") == "default"
            ),
            None,
        )
    if not isinstance(found, str):
        raise PlanError(
            f"{folder} has no chat template",
            hint=(
                f"Name the folder of a tokenizer: one with {JINJA_FILE}, or {CONFIG_FILE} with a"
                " chat_template."
            ),
        )
    return ChatTemplate(text=found, tokens=tokens, file=folder / CONFIG_FILE)


def renderer(
    template: ChatTemplate, *, variables: Mapping[str, object], today: date | None
) -> Callable[..., str]:
    """Return the function that renders messages as text, with the model's turn opened.

    `variables` are those of chat_template_kwargs; the function takes additional ones. `today` is
    the date that `strftime_now` shows. With None, a template that asks for it is refused, because
    the prompts would change daily. Raises PlanError for an invalid template; the function raises it
    if the template fails.
    """
    from jinja2 import TemplateError

    def refuse(why: object) -> NoReturn:
        raise PlanError(f"{template.file}: the chat template fails: {why}")

    try:
        compiled = _environment(today).from_string(template.text)
    except (TemplateError, *_RAISED) as error:
        refuse(error)

    def render(messages: Sequence[Message], more: Mapping[str, object] = _NONE) -> str:
        if any(turn.media for turn in messages):
            raise PlanError(
                "media cannot be rendered into a text",
                hint="Omit `tokenizer`, so that the server renders.",
            )
        turns = [{"role": turn.role, "content": turn.text} for turn in messages]
        given = {
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
            **template.tokens,
            **variables,
            **more,
        }
        try:
            text = compiled.render(messages=turns, **given)
        except (TemplateError, *_RAISED) as error:
            refuse(error)
        if len(text) > MOST_RENDERED:
            refuse(f"it makes a prompt of {len(text)} characters; the limit is {MOST_RENDERED}")
        return text

    return render


class Rendering:
    """The function of `renderer` in its own process: a template may loop or fill the memory.

    The process starts with the first call and runs until `close`; a later call starts another.
    Raises PlanError for an invalid template. A call raises it if the template fails or takes longer
    than RENDERING_S.
    """

    def __init__(
        self, template: ChatTemplate, *, variables: Mapping[str, object], today: date | None
    ) -> None:
        from jinja2 import TemplateError

        self._template, self._variables, self._today = template, dict(variables), today
        self._apart: Apart | None = None
        if (length := len(template.text)) > MOST_TEMPLATE:
            raise PlanError(
                f"{template.file}: the chat template has {length} characters; the limit is"
                f" {MOST_TEMPLATE}"
            )
        try:
            _environment(today).parse(template.text)  # executes nothing
        except (TemplateError, *_RAISED) as error:
            raise PlanError(f"{template.file}: the chat template fails: {error}") from error

    def __call__(self, messages: Sequence[Message], more: Mapping[str, object] = _NONE) -> str:
        if self._apart is None:
            make = (_make, (self._template, self._variables, self._today))
            limits = {"limit_s": RENDERING_S, "making_s": RENDERING_S}
            self._apart = Apart({"render": make}, at_once=1, memory_bytes=MEMORY_BYTES, **limits)
            weakref.finalize(self, self._apart.close)
        found = self._apart.call("render", tuple(messages), dict(more))
        if isinstance(found, Unfinished):
            ours = found.raised == PlanError.__name__
            told = (
                found.told
                if ours
                else f"{self._template.file}: the chat template fails: {found.told}"
            )
            raise PlanError(told, hint=found.hint)
        return str(found)

    def close(self) -> None:
        """End the process."""
        if self._apart is not None:
            self._apart.close()
            self._apart = None


def _make(
    template: ChatTemplate, variables: Mapping[str, object], today: date | None
) -> Callable[..., str]:
    return renderer(template, variables=variables, today=today)


def _environment(today: date | None) -> ImmutableSandboxedEnvironment:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks a model's text for training; its content is rendered."""

        tags = {"generation"}  # noqa: RUF012  (jinja2's form)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def strftime_now(form: str) -> str:
        if today is None:
            raise PlanError(
                "the chat template shows the date, so the prompts would change daily",
                hint="Set a fixed date, such as template_date: 2026-11-20.",
            )
        return today.strftime(form)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = tojson
    made.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return made


class Choices(TypedDict, total=False):
    """Options that every task has, in a plan and as `--set TASK.OPTION=VALUE`.

    An omitted option has the task's default. docs/requests.md explains each option.
    """

    apply_chat_template: bool
    system_prompt: str | None
    thinking: bool | Literal["on", "off"] | None
    max_tokens: int
    temperature: float | None
    top_p: float | None
    seed: int | None
    stop: list[str] | None
    truncate_prompt_tokens: int | None
    extra_body: dict[str, Any] | None
    tokenizer: str | None
    add_special_tokens: bool | None
    template_date: str | None
    suite_exact: bool
    acceptance_length: str | None
    history_thoughts: HistoryThoughts | None


Render = Callable[[tuple[Message, ...]], str]
"""Makes one text of messages."""


def choose_rendering(
    given: Choices, extra: Mapping[str, object], *, chat: bool, exact: bool
) -> tuple[Render | None, dict[str, object], dict[str, object]]:
    """Choose what renders messages on our side (None: the server renders).

    Also returns the fields that are sent and the entries of the fingerprint.
    """
    thinking, sent = _thinking(given.get("thinking")), dict(extra)
    variables = dict(typing.cast(Mapping[str, object], sent.pop("chat_template_kwargs", {})))
    if (folder := given.get("tokenizer")) is None or not chat:
        if thinking is None and exact and chat and "enable_thinking" not in variables:
            thinking = False  # as the suite does; templates without the switch ignore it
        if thinking is not None:
            variables["enable_thinking"] = thinking
        return (
            None,
            {**sent, **({"chat_template_kwargs": variables} if variables else {})},
            {"thinking": thinking},
        )
    template = read(Path(folder).expanduser())
    if (
        thinking is None
        and exact
        and "enable_thinking" in template.text
        and "enable_thinking" not in variables
    ):
        thinking = False  # as the suite does for templates with the switch
    if thinking is not None:
        variables["enable_thinking"] = thinking
    day = given.get("template_date")
    render = Rendering(template, variables=variables, today=date_of(day) if day else None)
    special = given.get("add_special_tokens", exact)
    told: dict[str, object] = {
        "thinking": thinking,
        "chat_template": f"client sha256:{template.sha256}",
        "template_date": day,
        "add_special_tokens": special,
    }
    return render, {**sent, "add_special_tokens": special}, told


def prompt_under(
    prompt: Prompt, *, chat: bool, system_prompt: str, render: Render | None
) -> Prompt:
    """Return a prompt as it is sent: a text or turns, after the system prompt.

    `render` renders turns on our side. Raises PlanError for several turns without a chat template.
    """
    if not chat:
        if not isinstance(prompt, str):
            if len(prompt) > 1 or prompt[0].media:
                raise PlanError(
                    "several turns or media cannot be sent as plain text",
                    hint="Omit apply_chat_template: false for this task.",
                )
            prompt = prompt[0].text
        return system_prompt + prompt
    turns = (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt
    if system_prompt:
        turns = (Message(role="system", content=system_prompt), *turns)
    return turns if render is None else render(turns)


def date_of(text: str) -> date | None:
    """Return a date such as 2026-11-20, or None for an invalid one."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _thinking(given: bool | str | None) -> bool | None:
    """Return the switch as a boolean: YAML reads on and off as booleans; flags give words."""
    return given == "on" if isinstance(given, str) else given


CONFIG_FILE, TOKENS_FILE = "tokenizer_config.json", "special_tokens_map.json"


def read_special_tokens(folder: Path) -> dict[str, str]:
    """Return the special tokens of a folder by names such as bos_token. Raises PlanError."""
    if not any((folder / name).exists() for name in (CONFIG_FILE, TOKENS_FILE)):
        raise PlanError(f"{folder} has no {CONFIG_FILE}", hint="Name the folder of a tokenizer.")
    return read_texts({**json_of(folder / TOKENS_FILE), **json_of(folder / CONFIG_FILE)})


def read_texts(content: Mapping[str, object]) -> dict[str, str]:
    """Return the texts of the special tokens among other settings.

    Files write them as texts or with their properties.
    """
    found = {}
    for name, value in content.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def beginning(tokens: Mapping[str, str]) -> str:
    """Return the token that lm-eval puts before a text: bos_token, else eos_token, else ""."""
    return tokens.get("bos_token") or tokens.get("eos_token") or ""


def json_of(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file, empty if there is none.

    Raises PlanError for a file that cannot be read.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise PlanError(f"{file}: cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}
