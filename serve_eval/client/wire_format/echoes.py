"""Detect an answer that repeats the last answer of its connection.

A proxy that answers twice puts the second answer before the reply to the next request on that
connection. From then on every sample would be scored with another sample's answer. HTTP/1.1 does
not reveal it, but the ids of the answers do.
"""

from __future__ import annotations

from serve_eval.client.channel import Channel
from serve_eval.client.wire_format.wire import Said


class Echoes:
    """Detects repeated answers by their ids, unless the server gives every answer the same id."""

    def __init__(self) -> None:
        self._newest: tuple[str, Channel] | None = None
        self._ids_tell = True

    def is_echo(self, channel: Channel, said: Said) -> bool:
        """Return True if a connection repeated its last answer: same id, text and tool calls."""
        if said.id is None or not self._ids_tell:
            return False
        text = hash((said.text, said.tool_calls))
        if said.id == channel.last_id and text == channel.last_text:
            self._newest = said.id, channel
            return True
        elsewhere = (
            self._newest is not None
            and self._newest[0] == said.id
            and self._newest[1] is not channel
        )
        if elsewhere or said.id == channel.last_id:
            self._ids_tell = False
        self._newest, channel.last_id, channel.last_text = (said.id, channel), said.id, text
        return False
