"""Find the letter that an answer gives, by the rules of MMMU's own evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_uppercase


def find_given_letter(text: str, options: Sequence[str]) -> str | None:
    """Return the last letter as "(A)", else as a word of its own, else by an option's text.

    The option whose text comes last is used only in answers of more than five words.
    """
    for mark in ",.!?;:'":
        text = text.strip(mark)
    text = f" {text} "
    forms: list[tuple[str, Callable[[int], str]]] = [
        (text, lambda i: f"({ascii_uppercase[i]})"),
        (text, lambda i: f" {ascii_uppercase[i]} "),
    ]
    if len(text.split()) > 5:
        forms.append((text.lower(), lambda i: options[i].lower()))
    for searched, form in forms:
        places = [searched.rfind(form(i)) for i in range(len(options))]
        if places and max(places) >= 0:
            return ascii_uppercase[places.index(max(places))]
    return None
