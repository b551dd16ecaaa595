"""The events of a Chrome trace file, a piece at a time.

A profiler's trace is one JSON object whose ``traceEvents`` holds millions of small objects. Parsing it whole takes
many times the file in memory. Here the text is cut at places where one event ends and the next begins, and each piece
is parsed alone: a piece that starts where an event starts and parses as a whole array was cut in the right place,
whatever its strings and nested objects hold, so no tokenizer of our own is needed.
"""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import orjson

from torchledger.errors import MeasureError

log = logging.getLogger(__name__)

CHUNK_BYTES = 128 << 10  # a piece and the objects made of it stay in the cache: half the time of 4 MB

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*\{")
_BARE_LIST = b"{}"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MOST_CUTS_TRIED = 6
_LONGEST_HEADER = 16 << 20  # bytes before the first event; a profiler writes some KB
_LONGEST_EVENT = 16 << 20  # bytes; an event with all its shapes and its stack takes some 100 KB
_MOST_HEADS_TRIED = 16  # places that may be where the events start; text may hold the words, too
_MOST_FAULTS = 2_000  # places where no JSON can be read; more than that are no trace's
_MOST_INFLATION = 200  # bytes that a compressed byte may stand for: equal steps shrink to a hundredth
_SMALL_BYTES = 64 << 20  # what any compressed file may grow to
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib's largest window, with a gzip header
_COMPRESSED_BYTES = 256 << 10

Progress = Callable[[int, int], None]
"""Called with bytes of the file done and bytes in all."""


class EventStream:
    """Iterates over lists of raw events; afterwards ``metadata`` and ``problems`` are complete.

    ``problems`` maps what was left out, in words, to how many events that concerns (0: not a matter of events).
    Raises ``MeasureError`` for a file that is no trace; a trace that is cut off yields what is whole in it.
    """

    def __init__(self, file: IO[bytes], *, name: str, total_bytes: int = 0, progress: Progress | None = None) -> None:
        self.metadata: dict[str, Any] = {}
        self.problems: dict[str, int] = {}
        self.is_truncated = False
        self.bytes_read = 0
        self._name = name
        self._total_bytes = total_bytes
        self._progress = progress
        self._file = file
        self._is_gzip = file.read(2) == _GZIP_MAGIC
        file.seek(0)
        self._inflater = zlib.decompressobj(_GZIP_WINDOW)
        self._is_at_end = False
        self._most_bytes = max(_SMALL_BYTES, _MOST_INFLATION * total_bytes)
        self._faults_left = _MOST_FAULTS

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        head, rest = self._read_header()
        carry = rest
        separator = _guess_separator(rest)
        is_complete = False
        while True:
            piece = self._read_piece()
            while len(piece) < len(carry) and not self._is_at_end:  # so that a long event is not tried again and again
                piece += self._read_piece()
            text = carry + piece if carry else piece
            if self._is_at_end:
                events, is_complete, tail = self._parse_carefully(text, is_last=True)
                if events:
                    yield events
                self._read_footer(head, tail, is_complete=is_complete)
                break
            whole, cut = _parse_up_to_last_event(text, separator)
            if whole is None:
                events, is_complete, tail = self._parse_carefully(text, is_last=False)
                if is_complete:
                    if events:
                        yield events
                    self._read_footer(head, tail + self._read_everything(), is_complete=True)
                    break
                carry = tail
            else:
                events, carry = whole, text[cut:]
            if events:
                yield events
        if self._progress is not None:
            self._progress(self._total_bytes, self._total_bytes)

    def _read_piece(self) -> bytes:
        try:
            piece = self._inflate() if self._is_gzip else self._file.read(CHUNK_BYTES)
        except OSError as error:
            raise MeasureError(f"cannot read {self._name}: {error.strerror or error}.") from error
        except zlib.error as error:
            if self.bytes_read == 0:
                raise MeasureError(f"{self._name} is not a readable gzip file ({error}).") from error
            self.is_truncated = True
            self.problems[f"the compressed file is damaged ({error}), so it ends early; what followed is missing"] = 0
            piece = b""
        self.bytes_read += len(piece)
        if self._is_gzip and self.bytes_read > self._most_bytes:
            raise MeasureError(
                f"{self._name} is not a trace: it holds more than {_MOST_INFLATION} times its size. Unpack it with "
                "gunzip and give that, if it is one all the same."
            )
        if not piece:
            self._is_at_end = True
        if self._progress is not None:
            self._progress(self._file.tell(), self._total_bytes)
        return piece

    def _inflate(self) -> bytes:
        """The next decompressed bytes; all that a cut-off file holds, where ``gzip`` drops its last piece."""
        pieces: list[bytes] = []
        size = 0
        while size < CHUNK_BYTES:
            compressed = self._inflater.unconsumed_tail or self._inflater.unused_data
            if self._inflater.eof and compressed[:2] == _GZIP_MAGIC:
                self._inflater = zlib.decompressobj(_GZIP_WINDOW)
            elif self._inflater.eof and compressed:
                break
            if not compressed:
                compressed = self._file.read(_COMPRESSED_BYTES)
            if not compressed:
                pieces.append(self._inflater.flush())
                break
            pieces.append(self._inflater.decompress(compressed, CHUNK_BYTES - size))
            size += len(pieces[-1])
        return b"".join(pieces)

    def _read_everything(self) -> bytes:
        pieces = []
        while not self._is_at_end:
            pieces.append(self._read_piece())
        return b"".join(pieces)

    def _read_header(self) -> tuple[bytes, bytes]:
        """The text before the first event, closed so that it parses, and the text from the first event on."""
        text = b""
        start = heads_tried = 0
        while True:
            piece = self._read_piece()
            text = (text + piece).removeprefix(_BYTE_ORDER_MARK)
            stripped = text.lstrip()
            if not stripped and self._is_at_end:
                raise MeasureError(
                    f"{self._name} is empty. Record a trace with torch.profiler and export_chrome_trace."
                )
            if stripped[:1] == b"[":
                return _BARE_LIST, stripped[1:]
            if stripped and stripped[:1] != b"{":
                raise MeasureError(f"{self._name} is not a JSON trace: it starts with {_excerpt(stripped)}.")
            for match in _EVENTS_KEY.finditer(text, start):
                head = text[: match.end()] + b"]}"
                if _loads_or_none(head) is not None or _loads_leniently(head) is not None:
                    return head, text[match.end() :]
                heads_tried += 1
                if heads_tried == _MOST_HEADS_TRIED:
                    break
            start = max(0, len(text) - 64)
            if self._is_at_end or len(text) > _LONGEST_HEADER or heads_tried == _MOST_HEADS_TRIED:
                raise MeasureError(
                    f"{self._name} is not a Chrome trace: no list named traceEvents in it. "
                    "Give a file written by torch.profiler's export_chrome_trace."
                )

    def _read_footer(self, head: bytes, tail: bytes, *, is_complete: bool) -> None:
        """Join what stands before and after the events into ``metadata``."""
        metadata = None
        if is_complete and head != _BARE_LIST:
            text = head[:-1] + tail
            metadata = _loads_or_none(text) or _loads_leniently(text)
        if metadata is None and head != _BARE_LIST:
            if not self.is_truncated:
                cut = "the text after the last event" if is_complete else "the last event"
                self.problems[f"the file ends early: {cut} is cut off, and what followed is missing"] = 0
            self.is_truncated = True
            metadata = _loads_or_none(head) or _loads_leniently(head)
        if isinstance(metadata, dict):
            metadata.pop("traceEvents", None)
            self.metadata = metadata

    def _parse_carefully(self, text: bytes, *, is_last: bool) -> tuple[list[dict[str, Any]], bool, bytes]:
        """Parse event by event: ``(events, whether the list was closed, the text after)``.

        Slow; for the last piece and for text that orjson refuses (NaN, stray control characters, broken UTF-8).
        """
        if is_last:
            events = _parse_closed_list(text)
            if events is not None:
                return events
        text, held = (text, b"") if is_last else _without_half_characters(text)
        words = _decode(text)
        decoder = json.JSONDecoder(strict=False)
        events_read: list[dict[str, Any]] = []
        unreadable = 0
        position = 0
        while True:
            position = _skip_space_and_comma(words, position)
            if position >= len(words):
                return self._careful_result(events_read, False, held, unreadable)
            if words[position] == "]":
                return self._careful_result(events_read, True, words[position + 1 :].encode() + held, unreadable)
            try:
                event, position = decoder.raw_decode(words, position)
            except (ValueError, RecursionError) as error:
                if _is_cut_off(error, words):
                    rest = b"" if is_last else words[position:].encode() + held
                    if len(rest) > _LONGEST_EVENT:
                        raise MeasureError(
                            f"{self._name} is not a Chrome trace: {_LONGEST_EVENT >> 20} MB without the end of an "
                            f"event, from {_excerpt(rest)}."
                        ) from None
                    return self._careful_result(events_read, False, rest, unreadable)
                unreadable += 1
                position = self._start_of_next_event(decoder, words, position + 1)
                continue
            if isinstance(event, dict):
                events_read.append(event)
            else:
                unreadable += 1

    def _careful_result(
        self, events: list[dict[str, Any]], is_complete: bool, tail: bytes, unreadable: int
    ) -> tuple[list[dict[str, Any]], bool, bytes]:
        if unreadable:
            problem = "events that are not valid JSON are left out"
            self.problems[problem] = self.problems.get(problem, 0) + unreadable
        return events, is_complete, tail

    def _start_of_next_event(self, decoder: json.JSONDecoder, words: str, position: int) -> int:
        """Where the next object starts that has a phase, as events do and what is nested in them does not.

        An object that the text cuts off may be an event too.
        """
        for match in _NEXT_OBJECT.finditer(words, position):
            self._faults_left -= 1
            if self._faults_left < 0:
                raise MeasureError(
                    f"{self._name} is not a Chrome trace: it cannot be read in more than {_MOST_FAULTS:,} places. "
                    "Record a trace with torch.profiler and export_chrome_trace."
                )
            try:
                value, _ = decoder.raw_decode(words, match.end())
            except json.JSONDecodeError as error:
                if _is_cut_off(error, words):
                    return match.end()
            except (ValueError, RecursionError):
                continue
            else:
                if "ph" in value:
                    return match.end()
        return len(words)


def open_events(path: Path, *, progress: Progress | None = None) -> EventStream:
    """The events of a trace file, plain or gzip; ``MeasureError`` names the file if it cannot be opened."""
    try:
        total_bytes = path.stat().st_size
        file = path.open("rb")
    except IsADirectoryError as error:
        raise MeasureError(
            f"{path} is a folder. Name a trace in it; `torchledger show {path}` takes the traces of a job's ranks."
        ) from error
    except OSError as error:
        raise MeasureError(f"cannot read {path}: {error.strerror or error}.") from error
    return EventStream(file, name=str(path), total_bytes=total_bytes, progress=progress)


_SURROGATES = re.compile(r"(\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2})|\\u[dD][89a-fA-F][\da-fA-F]{2}")
_HALF_CHARACTER = re.compile(rb"((\\u[dD][89abAB][\da-fA-F]{2})?(\\(u[\da-fA-F]{0,3})?)?|[\xc2-\xf4][\x80-\xbf]{0,2})$")
"""What a cut can leave of a character at the end of a piece: part of an escape, half of a surrogate pair, of UTF-8."""

_NEXT_OBJECT = re.compile(r",\s*(?=\{)")
_LONGEST_WORD = len("-Infinity")


def _is_cut_off(error: Exception, words: str) -> bool:
    """True when the text ends before its value does, false when the value is wrong."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.pos >= len(words) - _LONGEST_WORD or error.msg.startswith("Unterminated string")


def _guess_separator(text: bytes) -> bytes:
    """What this writer puts between two events, with both braces; a wrong guess only costs time."""
    match = _BETWEEN_EVENTS.search(text)
    return match.group() if match else b"},{"


def _parse_up_to_last_event(text: bytes, separator: bytes) -> tuple[list[dict[str, Any]] | None, int]:
    """Parse all events that end in ``text``: ``(events, where the text of the next one starts)``."""
    end = len(text)
    for _ in range(_MOST_CUTS_TRIED):
        end = text.rfind(separator, 0, end)
        if end < 0:
            break
        events = _loads_or_none(b"".join((b"[", memoryview(text)[: end + 1], b"]")))
        if isinstance(events, list) and set(map(type, events)) <= {dict}:
            return events, end + len(separator) - 1
    return None, 0


def _parse_closed_list(text: bytes) -> tuple[list[dict[str, Any]], bool, bytes] | None:
    """The last piece, when all is well: events, ``]`` and a short footer."""
    end = len(text)
    for _ in range(_MOST_CUTS_TRIED):
        end = text.rfind(b"]", 0, end)
        if end < 0:
            return None
        events = _loads_or_none(b"".join((b"[", text[:end], b"]")))
        if isinstance(events, list) and set(map(type, events)) <= {dict}:
            return events, True, text[end + 1 :]
    return None


def _skip_space_and_comma(words: str, position: int) -> int:
    while position < len(words) and words[position] in " \t\r\n,":
        position += 1
    return position


def _loads_or_none(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def dump_event(event: Any) -> bytes:
    """What was parsed, as JSON again; the standard library takes the integers and texts that orjson does not."""
    try:
        return orjson.dumps(event)
    except TypeError:
        return json.dumps(event).encode()


def _loads_leniently(text: bytes) -> Any:
    """As the standard library reads it: NaN, control characters in strings and broken UTF-8 are let through."""
    try:
        return json.loads(_decode(text), strict=False)
    except (ValueError, RecursionError):  # also an integer of more than 4,300 digits
        return None


def _without_half_characters(text: bytes) -> tuple[bytes, bytes]:
    """A piece without the character that its end cuts, and what is there of that character."""
    match = _HALF_CHARACTER.search(text, max(len(text) - 12, 0))
    return (text[: match.start()], match[0]) if match is not None else (text, b"")


def _decode(text: bytes) -> str:
    """Text that any output can hold, whatever bytes and halves of surrogate pairs stand in it."""
    return _SURROGATES.sub(lambda match: match[1] or r"\ufffd", text.decode("utf-8", errors="replace"))


def _excerpt(text: bytes) -> str:
    return repr(text[:40].decode("utf-8", errors="replace"))
