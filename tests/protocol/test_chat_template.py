"""Test that templates of models render as in transformers, and cannot do anything else."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import PlanError
from serve_eval.protocol import chat_template
from serve_eval.protocol.chat_template import ChatTemplate, Rendering, read, renderer
from serve_eval.schema import ImagePart, ImageUrl, Message

TURNS = (Message(role="system", content="Be brief."), Message(role="user", content="Ünd <1+1>?"))

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
CHATML_TEXT = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nÜnd"
    " <1+1>?<|im_end|>\n<|im_start|>assistant\n"
)


def _render(
    text: str,
    *,
    today: date | None = None,
    tokens: dict[str, str] | None = None,
    **variables: object,
) -> str:
    template = ChatTemplate(text=text, tokens=tokens or {}, file=Path("tokenizer_config.json"))
    return renderer(template, variables=variables, today=today)(TURNS)


@pytest.mark.parametrize(
    ("text", "variables", "shown"),
    [
        (CHATML, {}, CHATML_TEXT),
        (CHATML, {"enable_thinking": False}, CHATML_TEXT + "<think>\n\n</think>\n\n"),
        (CHATML, {"enable_thinking": True}, CHATML_TEXT),
        # a line with only a statement leaves nothing behind
        ("{% for m in messages %}\n  {% if loop.last %}\n{{ m.role }}\n  {% endif %}\n"
         "{% endfor %}\n",
         {}, "user\n"),
        ("{% for m in messages %}{% if loop.index0 %}{% break %}{% endif %}{{ m.role }}"
         "{% endfor %}",
         {}, "system"),
        ("{{ messages[1] | tojson }}", {}, '{"role": "user", "content": "Ünd <1+1>?"}'),
        ("{{ {'b': 1, 'a': '<é>'} | tojson(indent=1, sort_keys=true) }}", {},
         '{\n "a": "<é>",\n "b": 1\n}'),
        ("{{ bos_token }}{{ messages[0]['content'] | trim | upper }}", {}, "<s>BE BRIEF."),
        ("{% generation %}{{ messages[1].role }}{% endgeneration %}!", {}, "user!"),
        ("{{ tools is none }} {{ documents is none }} {{ x is defined }} [{{ nothing }}]", {},
         "True True False []"),
    ],
)  # fmt: skip
def test_templates_render_as_transformers_renders_them(
    text: str, variables: dict[str, Any], shown: str
) -> None:
    assert _render(text, tokens={"bos_token": "<s>"}, **variables) == shown


def test_a_template_that_shows_the_date_needs_one_that_stays() -> None:
    text = "{{ strftime_now('%d %b %Y') }}"
    assert _render(text, today=date(2026, 11, 20)) == "20 Nov 2026"
    with pytest.raises(PlanError, match="shows the date") as refused:
        _render(text)
    assert "template_date" in refused.value.hint
    assert _render("{% if strftime_now is defined %}x{% endif %}") == "x"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "chat template fails"),
        ("{{ ''.__class__.__mro__ }}", "chat template fails"),
        ("{{ messages.append(1) }}", "chat template fails"),
        ("{{ messages.__init__.__globals__ }}", "chat template fails"),
        ("{% include '/etc/passwd' %}", "chat template fails"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ range(10 ** 9) }}", "chat template fails"),
        ("{{ messages[0].content + 1 }}", "chat template fails"),
    ],
)
def test_what_a_template_must_not_or_cannot_do_is_refused(text: str, why: str) -> None:
    with pytest.raises(PlanError, match=why) as refused:
        _render(text)
    assert "tokenizer_config.json" in str(refused.value)


def test_images_are_left_to_the_server() -> None:
    turns = (Message(role="user", content=(ImagePart(image_url=ImageUrl(url="data:,")),)),)
    template = ChatTemplate(text=CHATML, tokens={}, file=Path("f"))
    with pytest.raises(PlanError, match="media cannot be rendered"):
        renderer(template, variables={}, today=None)(turns)


def _folder(tmp_path: Path, **files: str) -> Path:
    for name, content in files.items():
        (tmp_path / name.replace("__", ".")).write_text(content)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "text", "tokens"),
    [
        ({"tokenizer_config__json": '{"chat_template": "A", "bos_token": "<s>"}'},
         "A", {"bos_token": "<s>"}),
        (
            {"tokenizer_config__json": '{"chat_template": "A", "eos_token": {"content": "</s>"},'
             ' "pad_token": null}'},
            "A",
            {"eos_token": "</s>"},
        ),
        (
            {"tokenizer_config__json": '{"chat_template": [{"name": "tool_use", "template": "T"}, '
             '{"name": "default", "template": "D"}]}'},
            "D",
            {},
        ),
        ({"tokenizer_config__json": '{"chat_template": "A"}', "chat_template__jinja": "J"},
         "J", {}),
        (
            {"chat_template__jinja": "J",
             "special_tokens_map__json": '{"bos_token": {"content": "<b>"}}'},
            "J",
            {"bos_token": "<b>"},
        ),
    ],
)  # fmt: skip
def test_templates_and_tokens_are_found_where_models_have_them(
    tmp_path: Path, files: dict[str, str], text: str, tokens: dict[str, str]
) -> None:
    found = read(_folder(tmp_path, **files))
    assert (found.text, found.tokens) == (text, tokens)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer_config__json": "{}"},
        {"tokenizer_config__json": "{"},
        {"tokenizer_config__json": "[" * 10**5},
    ],
    ids=range(4),
)
def test_a_folder_without_a_template_is_refused(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(PlanError):
        read(_folder(tmp_path, **files))


def test_the_checksum_is_that_of_all_that_decides_the_text() -> None:
    one, other, third = (
        ChatTemplate(text=text, tokens=tokens, file=Path(name))
        for text, tokens, name in (("a", {}, "x"), ("a", {}, "y"), ("a", {"bos_token": "s"}, "x"))
    )
    assert one.sha256 == other.sha256 != third.sha256


_LOOP = "{% for _ in range(90000) %}"
LOOPS = f"{_LOOP}{_LOOP}{_LOOP}{{% endfor %}}{{% endfor %}}{{% endfor %}}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LOOPS, "the chat template fails: took longer than 1 s"),
        ("{{ 'a' * 10**12 }}", "the chat template fails: MemoryError"),
        (
            "{{ messages[0].role[:1] * 4 * 10**7 }}",
            (
                "the chat template fails: it makes a prompt of 40000000 characters; the limit is"
                " 33554432"
            ),
        ),
        (
            "{{ 'a'|center(4 * 10**7) }}",
            "the chat template fails: it makes a prompt of 40000000 characters",
        ),
        (
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            "the chat template fails: maximum recursion depth",
        ),
        (
            "{{ ''.__class__.__base__.__subclasses__() }}",
            "the chat template fails: access to attribute '__class__'",
        ),
        ("{{ messages|nofilter }}", "the chat template fails: No filter named 'nofilter'"),
        ("{{ raise_exception('no system prompt') }}", "the chat template fails: no system prompt"),
    ],
)
def test_a_template_that_never_ends_or_fails_is_told_of(
    text: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "RENDERING_S", 1.0 if text == LOOPS else 20.0)
    template = ChatTemplate(text=text, tokens={}, file=Path("a.jinja"))
    render = Rendering(template, variables={}, today=None)
    with pytest.raises(PlanError, match=re.escape(f"a.jinja: {told}")):
        render(TURNS)
    render.close()


def test_a_number_that_takes_for_ever_is_given_up_while_the_template_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat_template, "RENDERING_S", 2.0)
    template = ChatTemplate(text="{{ 10 ** (10 ** 9) }}", tokens={}, file=Path("a.jinja"))
    render = Rendering(template, variables={}, today=None)
    with pytest.raises(
        PlanError, match=r"a\.jinja: the chat template fails: .*took longer than 2 s"
    ):
        render(TURNS)
    render.close()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{{ " + "(" * 10**5 + "1" + ")" * 10**5 + " }}", "maximum recursion depth"),
        ("{% if x %}" * 10**4, "maximum recursion depth"),
        ("{{ " + "1" * 10**4 + " }}", "Exceeds the limit"),
        ("a" * 10**6, "1000000 characters; the limit is 524288"),
    ],
    ids=["brackets", "ifs", "digits", "long"],
)
def test_a_text_that_no_model_has_as_its_template_is_refused_at_once(text: str, told: str) -> None:
    with pytest.raises(PlanError, match=rf"a\.jinja: the chat template .*{told}"):
        Rendering(
            ChatTemplate(text=text, tokens={}, file=Path("a.jinja")), variables={}, today=None
        )


def test_a_template_is_rendered_alike_in_a_process_of_its_own() -> None:
    text = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}{{"
        " strftime_now('%Y') }}"
    )
    text += "{{ x }}"
    template, day = (
        ChatTemplate(text=text, tokens={"bos_token": "<s>"}, file=Path("a.jinja")),
        date(2026, 11, 20),
    )
    render = Rendering(template, variables={"x": [1]}, today=day)
    for _ in range(2):
        assert render(TURNS) == renderer(template, variables={"x": [1]}, today=day)(TURNS)
        assert render(TURNS, {"x": 2}).endswith("2")
        render.close()
    with pytest.raises(PlanError, match=r"a\.jinja: the chat template fails: "):
        Rendering(
            ChatTemplate(text="{% for", tokens={}, file=Path("a.jinja")), variables={}, today=None
        )
