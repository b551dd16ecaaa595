"""Records to JSON and back, by their type hints: ``decode(type(r), encode(r)) == r`` for every record.

What ``decode`` returns is of the declared types down to the last item: this is the one place where a file's content is
doubted, so that no room behind it has to. Unknown fields in a file are ignored and absent ones take their defaults, so
that files of older and newer versions stay readable.

A record is any dataclass of plain values, mappings, tuples, ``Literal``s, unions of plain values and other such
dataclasses.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

Record = TypeVar("Record")

LARGEST_INTEGER = 2**63 - 1
"""What SQLite, numpy and Parquet hold; nothing that is counted here comes near it."""

_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_NOT_FINITE_MARK = b'{"float":'
_ANY_DIGIT_IS_0 = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else byte for byte in range(256))
_LONG_NUMBER = b"0" * len(str(LARGEST_INTEGER))
_PLACE = re.compile(r"(?s)(?P<what>.*) - at (?P<key>key in )?`\$\.?(?P<where>.*)`")


class FieldError(ValueError):
    """Text that is not the record it should be: the field, what it should hold and what it holds."""


def encode(record: Any) -> bytes:
    """One record as compact JSON; non-finite floats are written as ``{"float": "nan"}``, and the halves of surrogate
    pairs that stand for undecodable bytes in file names as ``\\udcff``."""
    plain = _plain(record)
    try:
        return msgspec.json.encode(plain)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(plain))


def decode(record_type: type[Record], text: bytes | str) -> Record:
    """The record of ``record_type`` that ``encode`` wrote, or that anyone wrote as JSON.

    Raises ``FieldError`` naming the first field that is not of its type.
    """
    try:
        body = text.encode() if isinstance(text, str) else text
        try:
            record: Record = _decoder(typing.cast(Any, record_type)).decode(body)
        except msgspec.ValidationError:
            if _NOT_FINITE_MARK not in body.replace(b" ", b""):
                raise
            record = msgspec.convert(_with_floats(msgspec.json.decode(body)), record_type)
        if _LONG_NUMBER in body.translate(_ANY_DIGIT_IS_0):
            _refuse_large_integers(msgspec.json.decode(body), "")
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise FieldError(_explain(error)) from None
    return record


def convert(record_type: type[Record], plain: Any) -> Record:
    """Plain Python values (dicts, lists, numbers, text) as a ``record_type``, with integers of any size.

    Raises ``FieldError`` as ``decode``.
    """
    try:
        record: Record = msgspec.convert(plain, record_type)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise FieldError(_explain(error)) from None
    return record


def parse(text: bytes | str) -> Any:
    """The plain values of JSON, as the standard library reads it, for ``convert``.

    Raises ``FieldError`` for what is none, or holds half a surrogate pair, which no output could hold.
    """
    try:
        plain = json.loads(text)
        if ("\\ud" if isinstance(text, str) else b"\\ud") in text.lower():  # type: ignore[operator]
            json.dumps(plain, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise FieldError(_explain(error)) from None
    return plain


_PLAIN_AS_THEY_ARE = {int, str, bool, type(None)}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if isinstance(value, (tuple, list)):
        return list(value) if set(map(type, value)) <= _PLAIN_AS_THEY_ARE else [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            name: _plain(item)
            for name, default in _fields(type(value))
            if (item := getattr(value, name)) is not default and item != default
        }
    raise TypeError(f"{type(value).__name__} is not a plain value: {value!r}")


def _encodable(plain: Any) -> Any:
    if isinstance(plain, str):
        return plain.encode("utf-8", "backslashreplace").decode()
    if isinstance(plain, list):
        return [_encodable(item) for item in plain]
    if isinstance(plain, dict):
        return {_encodable(key): _encodable(item) for key, item in plain.items()}
    return plain


@functools.cache
def _fields(record_type: type) -> tuple[tuple[str, Any], ...]:
    """Name and default of each field; a field equal to its default is left out of the file."""
    missing = object()
    return tuple(
        (
            field.name,
            field.default
            if field.default is not dataclasses.MISSING
            else field.default_factory()
            if field.default_factory is not dataclasses.MISSING
            else missing,
        )
        for field in dataclasses.fields(record_type)
    )


@functools.cache
def _decoder(record_type: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(record_type)


def _with_floats(plain: Any) -> Any:
    """Plain values with what ``encode`` wrote for non-finite floats as those floats."""
    if isinstance(plain, list):
        return [_with_floats(item) for item in plain]
    if isinstance(plain, dict):
        if len(plain) == 1 and isinstance(name := plain.get("float"), str) and name in _NOT_FINITE:
            return _NOT_FINITE[name]
        return {key: _with_floats(item) for key, item in plain.items()}
    return plain


def _refuse_large_integers(plain: Any, where: str) -> None:
    if isinstance(plain, list):
        if set(map(type, plain)) == {int} and min(plain) >= -LARGEST_INTEGER and max(plain) <= LARGEST_INTEGER:
            return  # a column of a long record: its items one by one would take longer than all the rest of reading
        for index, item in enumerate(plain):
            _refuse_large_integers(item, f"{where}[{index}]")
    elif isinstance(plain, dict):
        for key, item in plain.items():
            _refuse_large_integers(item, f"{where}.{key}")
    elif isinstance(plain, int) and not -LARGEST_INTEGER <= plain <= LARGEST_INTEGER:
        raise msgspec.ValidationError(
            f"Expected an integer of 64 bits, got one of {len(str(plain))} digits - at `${where}`"
        )


def _explain(error: Exception) -> str:
    """``"field `buffers[0].dtype`: expected `str`, got `int`"``."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = str(error)
    if (place := _PLACE.fullmatch(text)) is None:
        return text[:1].lower() + text[1:]
    what = place["what"][:1].lower() + place["what"][1:]
    return f"field `{place['where']}`: {'a key: ' if place['key'] else ''}{what}"
