"""Check that an endpoint sees and hears, and that it refuses damaged and too large media.

No row has a curl line: the request would be longer than a screen.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from serve_eval.checks.answer import Answer, short
from serve_eval.checks.row import CheckResult, fail_check, pass_check, report_unsupported
from serve_eval.checks.session import Check, CheckSession
from serve_eval.datasets import small_media
from serve_eval.frozen import freeze
from serve_eval.schema import SentPart, TextPart
from serve_eval.schema.media import make_part, media_bytes, media_form

TOKENS = 64
MEDIA_TOKENS = 1000
"""Prompt tokens of one of the small media, at most."""
PADDING_BYTES = 12 << 20
_NOT_TAKEN = re.compile(r"not (?:\w+ )?(?:support|multimodal)|mmproj|unknown part", re.IGNORECASE)


@freeze
class Medium:
    """A medium with a question, and what a right answer says of it.

    `pad` adds bytes to a file that its readers skip.
    """

    part: Callable[[], SentPart]
    media_type: str
    question: str
    says: re.Pattern[str]
    pad: Callable[[bytes, int], bytes]


def _pad_png(content: bytes, size: int) -> bytes:
    chunk = b"paDd" + bytes(size)
    check = struct.pack(">I", zlib.crc32(chunk))
    return content[:-12] + struct.pack(">I", size) + chunk + check + content[-12:]


def _pad_wav(content: bytes, size: int) -> bytes:
    whole = content + b"JUNK" + struct.pack("<I", size) + bytes(size)
    return whole[:4] + struct.pack("<I", len(whole) - 8) + whole[8:]


def _pad_mp4(content: bytes, size: int) -> bytes:
    return content + struct.pack(">I", 8 + size) + b"free" + bytes(size)


MEDIA = {
    "image": Medium(
        part=small_media.shape,
        media_type="image/png",
        question="Which shape does this image show, and in which colour? Answer in two words.",
        says=re.compile(r"(?=.*\bred\b)(?=.*\b(?:circ|dis[ck]\b|dot\b|round\b|ball\b))", re.S),
        pad=_pad_png,
    ),
    "audio": Medium(
        part=small_media.number,
        media_type="audio/wav",
        question="Which number does the voice say? Answer with the number only.",
        says=re.compile(r"(?=.*\b(?:7|seven)\b)", re.S),
        pad=_pad_wav,
    ),
    "video": Medium(
        part=small_media.dot,
        media_type="video/mp4",
        question=(
            "In which direction does the white dot move: left, right, up or down? Answer with one"
            " word: the direction towards which it moves."
        ),
        says=re.compile(r"(?!.*\b(?:left|up|down)\b)(?=.*\bright\b)", re.S),
        pad=_pad_mp4,
    ),
}
"""The media by the names of their checks."""


async def _ask(session: CheckSession, name: str, part: SentPart | None) -> Answer:
    """Ask the question about a medium, with this part or without any."""
    parts: list[Any] = [] if part is None else [part]
    content = msgspec.to_builtins([*parts, TextPart(text=MEDIA[name].question)])
    body = session.roomy_body("", chat=True, max_tokens=TOKENS)
    return await session.post({**body, "messages": [{"role": "user", "content": content}]})


async def perceive(session: CheckSession, name: str) -> CheckResult:
    """Check that a medium is taken, adds tokens to its prompt, and is understood."""
    if not session.chat:
        return report_unsupported("chat is not answered")
    answer = await _ask(session, name, MEDIA[name].part())
    if not answer.answered:
        if answer.refused or (answer.status >= 400 and _NOT_TAKEN.search(answer.told)):
            return report_unsupported(f"refused: {answer.told}")
        return fail_check(answer.told)
    bare = await _ask(session, name, None)
    tokens, without = answer.tokens("prompt_tokens"), bare.tokens("prompt_tokens")
    if tokens and without and tokens <= without:
        return fail_check(
            f"ignored: {tokens} prompt tokens with the {name}, {without} without, and no refusal"
        )
    session.known.media[name] = without or 0
    counted = f"; {tokens - without} prompt tokens" if tokens and without else ""
    text = session.known.thinking.read(answer.first)
    if text is None and session.known.thinking.thinks:
        return report_unsupported(session.tell_cut(), answer.sent)
    said = short(text or "", 40)
    if MEDIA[name].says.match((text or "").strip().lower()):
        return pass_check(f"answered {said!r}{counted}")
    return fail_check(f"answered {said!r}{counted}")


async def bad_media(session: CheckSession) -> CheckResult:
    """Check that a text in place of a medium is refused, and half a file not silently ignored."""
    if not session.known.media:
        return report_unsupported("no media are taken")
    halves = []
    for name, bare in session.known.media.items():
        text = await _ask(session, name, _put(name, b"This is a text. " * 64))
        if text.answered:
            return fail_check(f"a text sent as {name} was accepted")
        if not text.refused:
            return fail_check(f"a text sent as {name} was not refused clearly: {text.told}")
        content = media_bytes(MEDIA[name].part()) or b""
        half = await _ask(session, name, _put(name, content[: len(content) // 2]))
        if half.answered and bare and (half.tokens("prompt_tokens") or 0) <= bare:
            return fail_check(f"half of the file was ignored ({name}), and no refusal")
        if not half.answered and not half.refused:
            return fail_check(f"half of the file was not refused clearly ({name}): {half.told}")
        done = "read as far as it goes" if half.answered else "refused"
        halves.append(f"half of the {name} {done}")
    return pass_check(f"texts are refused; {', '.join(halves)}")


async def large_media(session: CheckSession) -> CheckResult:
    """Check that a request with a padded file is answered, or refused with a reason."""
    if not session.known.media:
        return report_unsupported("no media are taken")
    name = next(iter(session.known.media))
    content = MEDIA[name].pad(media_bytes(MEDIA[name].part()) or b"", PADDING_BYTES)
    answer = await _ask(session, name, _put(name, content))
    size = f"a request of {len(content) * 4 / 3 / 1e6:.0f} MB"
    if answer.answered:
        return pass_check(f"{size} is answered")
    if answer.refused:
        return pass_check(f"{size} is refused: {answer.told}")
    return fail_check(f"{size} is neither answered nor refused clearly: {answer.told}")


def _put(name: str, content: bytes) -> SentPart:
    return make_part(media_form(MEDIA[name].part()), MEDIA[name].media_type, content)


CHECKS = (
    *(
        Check(
            name,
            partial(perceive, name=name),
            requests=2,
            tokens=2 * TOKENS,
            prompt_tokens=MEDIA_TOKENS,
            full=True,
            model=True,
        )
        for name in MEDIA
    ),
    Check(
        "bad_media",
        bad_media,
        requests=2 * len(MEDIA),
        tokens=2 * len(MEDIA) * TOKENS,
        prompt_tokens=len(MEDIA) * MEDIA_TOKENS,
        full=True,
    ),
    Check(
        "large_media",
        large_media,
        requests=1,
        tokens=TOKENS,
        prompt_tokens=MEDIA_TOKENS,
        full=True,
    ),
)
