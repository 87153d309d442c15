from __future__ import annotations

import pytest

from serve_eval.report.samples.place import find_place


@pytest.mark.parametrize(
    ("text", "extracted", "found"),
    [
        ("The total is 1,234 apples.", "1234", "1,234"),
        ("90 or 190, so 90.", "90", "90"),
        ("the answer is (b)", "B", "b"),
        ("it is New\n York", "new york", "New\n York"),
        ("x = -5", "-5", "-5"),
        ("a+b", "a+b", "a+b"),
        ("1900", "90", None),
        ("50 and 30\n#### 80", "80.0", "80"),
        ("that is 1,234 or -5.50.", "-5.5", "-5.50"),
        ("some 1 234 in all", "1234.0", "1 234"),
        ("N = 6.02e23", "6.02e+23", "6.02e23"),
        ("0.80 and 180 and 80.05", "80.0", None),
        ("about", "B", None),
        ("anything", "", None),
        ("anything", None, None),
    ],
)
def test_the_last_place_as_a_word_is_found_in_any_form(
    text: str, extracted: str | None, found: str | None
) -> None:
    place = find_place(text, extracted)
    assert (None if place is None else text[place.start : place.end]) == found


def test_lines_and_places_are_counted() -> None:
    place = find_place("7 at first\nthen 8\n7 it is\n", "7")
    assert place is not None
    assert (place.start, place.line, place.lines, place.times) == (18, 3, 3, 2)
