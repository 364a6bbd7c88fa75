"""Frames: a length of four bytes, little-endian, and as many bytes of content."""

from __future__ import annotations

import struct

from .errors import WireError

__all__ = ("MAX_FRAME", "FrameDecoder", "encode_frame")

#: Largest content of a frame in bytes unless a decoder is told otherwise.
MAX_FRAME = 64 * 1024 * 1024

_HEADER = struct.Struct("<I")


def encode_frame(content: bytes, max_frame: int = MAX_FRAME) -> bytes:
    """Return ``content`` as one frame.

    Raises:
        WireError: the content is larger than ``max_frame``.
    """
    if len(content) > max_frame:
        raise WireError(f"a frame of {len(content)} bytes is larger than the {max_frame} that a peer takes")
    return _HEADER.pack(len(content)) + content


class FrameDecoder:
    """Takes bytes as they come and gives whole frames.

    Nothing is allocated for a frame before its bytes are there, and a length over the cap fails as soon as it is read.
    Failure is sticky: once a peer is out of step, nothing it says later means anything.

    Args:
        max_frame: Largest content in bytes that is taken.
    """

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._buffer = bytearray()
        self._failure: str | None = None

    @property
    def buffered(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Take ``data`` and return the content of every frame that it completes, in order.

        Raises:
            WireError: a frame is larger than the cap, now or at an earlier call. Frames that ``data`` completed before
                that one are dropped with it.
        """
        if self._failure is not None:
            raise WireError(self._failure)
        buffer = self._buffer
        if not buffer and len(data) >= 4 and len(data) == 4 + int.from_bytes(data[:4], "little") <= self._max_frame + 4:
            # One whole frame in one piece is the common case; it need not pass through the buffer.
            return [bytes(data[4:])]
        buffer += data
        frames: list[bytes] = []
        start = 0
        size = len(buffer)
        # Through a view, because slicing the buffer itself would copy every frame twice.
        with memoryview(buffer) as view:
            while size - start >= 4:
                (length,) = _HEADER.unpack_from(buffer, start)
                if length > self._max_frame:
                    self._failure = f"a frame claims {length} bytes; at most {self._max_frame} are taken"
                    self._buffer = bytearray()
                    raise WireError(self._failure)
                end = start + 4 + length
                if end > size:
                    break
                frames.append(bytes(view[start + 4 : end]))
                start = end
        if start:
            del buffer[:start]
        return frames
