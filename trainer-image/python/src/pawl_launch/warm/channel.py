"""Messages between a launch and the warm interpreter: JSON, each after its length, and file descriptors with the first."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

MOST_DESCRIPTORS = 64
_LENGTH = struct.Struct("!I")


def send(channel: socket.socket, message: Any, descriptors: list[int] | None = None) -> None:
    """Sends ``message``, with up to :data:`MOST_DESCRIPTORS` open files."""
    content = json.dumps(message).encode()
    header = _LENGTH.pack(len(content))
    if descriptors:
        socket.send_fds(channel, [header], descriptors)
    else:
        channel.sendall(header)
    channel.sendall(content)


def receive(channel: socket.socket) -> tuple[Any, list[int]]:
    """The next message and the files that came with it.

    Raises:
        EOFError: The other side has closed the connection.
    """
    header, descriptors, _, _ = socket.recv_fds(channel, _LENGTH.size, MOST_DESCRIPTORS)
    if not header:
        raise EOFError
    header += _exactly(channel, _LENGTH.size - len(header))
    return json.loads(_exactly(channel, *_LENGTH.unpack(header))), list(descriptors)


def _exactly(channel: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = channel.recv(size - len(content))
        if not part:
            raise EOFError
        content += part
    return content
