"""Make rows for tasks that measure the likelihood of a text or of its end."""

from __future__ import annotations

from typing import Any

from tests.oracle.made.drawn import Drawn


def lambada(d: Drawn) -> dict[str, Any]:
    return {
        "text": f"{d.sentence()} {d.sentence()} Then came {d.pick('a', 'an', d.word()[:3])}",
        "domain": None,
    }


def lambada_de(d: Drawn) -> dict[str, Any]:
    return {"text": f"{d.sentence()} Über {d.word()} kam ö{d.word()[:2]}"}


def arithmetic(d: Drawn) -> dict[str, Any]:
    a, b = d.number(10, 99), d.number(10, 99)
    return {"context": f"Q: What is {a} plus {b}?\n\nA:", "completion": f" {a + b}"}


def text(d: Drawn) -> dict[str, Any]:
    said = "  ".join(d.sentence() for _ in range(d.number(1, 4)))
    return {
        "text": f"{d.pick('', ' ', chr(10), 'É')}{said}{d.pick('', chr(10), ' 北京 🙂', ' ')}",
        "meta": {},
    }


def page(d: Drawn) -> dict[str, Any]:
    said = " , ".join(d.sentence() for _ in range(d.number(1, 3)))
    return {"page": f" \n = {d.word()} = \n \n {said} ( {d.word()} ) @-@ {d.word()} 's N \n"}
