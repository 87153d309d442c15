"""Find dates in the usual formats in a text. Pure."""

from __future__ import annotations

import re
from datetime import date, timedelta

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\.?"
_DATES = re.compile(
    rf"(?<!\d)(?:\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{4}}"
    rf"|\d{{1,2}} {_MONTH},? \d{{4}}|{_MONTH} \d{{1,2}},? \d{{4}})(?!\d)"
)
_WEEKDAY = re.compile(r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b")
_MONTHS = "January February March April May June July August September October November December"


def list_dates(text: str) -> list[str]:
    """Return the dates in a text, as written."""
    return _DATES.findall(text)


def mask_dates(text: str) -> str:
    """Return a text with every date and weekday replaced by the same word."""
    return _WEEKDAY.sub("<weekday>", _DATES.sub("<date>", text))


def find_today(text: str, today: date) -> str | None:
    """Return the date of today in a text, as written, or None.

    The dates of the days before and after count too: the server may have another time zone.
    """
    near = [today + timedelta(days=days) for days in (-1, 0, 1)]
    known = {form for day in near for form in _formats(day)}
    return next((one for one in list_dates(text) if _normalize(one) in known), None)


def _formats(day: date) -> list[str]:
    month, year = _MONTHS.split()[day.month - 1], day.year
    names = [month, month[:3], *(["Sept"] if day.month == 9 else [])]
    numbers = [(year, day.month, day.day), (day.month, day.day, year), (day.day, day.month, year)]
    worded = [f"{day.day} {name} {year}" for name in names]
    worded += [f"{name} {day.day} {year}" for name in names]
    return worded + ["-".join(map(str, one)) for one in numbers]


def _normalize(written: str) -> str:
    """Return a date without commas, leading zeros and the choice of a separator."""
    if written[-1].isdigit() and not re.search(r"[A-Za-z]", written):
        return "-".join(str(int(part)) for part in re.split(r"[-/.]", written))
    return " ".join(part.lstrip("0") for part in re.sub(r"[,.]", "", written).split())
