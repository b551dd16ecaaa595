"""Records to JSON and back, by their type hints: ``decode(type(r), encode(r)) == r`` for every record.

Unknown fields in a file are ignored and absent ones take their defaults, so that files of older versions stay readable.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import orjson

Record = TypeVar("Record")

_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def encode(record: Any) -> bytes:
    """One record as compact JSON; non-finite floats are written as ``{"float": "nan"}``, and the halves of surrogate
    pairs that stand for undecodable bytes in file names as ``\\udcff``."""
    plain = _plain(record)
    try:
        return orjson.dumps(plain)
    except TypeError:
        return orjson.dumps(_encodable(plain))


def decode(record_type: type[Record], text: bytes | str) -> Record:
    """The record of ``record_type`` that ``encode`` wrote."""
    record: Record = _decoder(typing.cast(Any, record_type))(orjson.loads(text))
    return record


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
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
def _decoder(hint: Any) -> Callable[[Any], Any]:
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = typing.get_type_hints(hint)
        decoders = {field.name: _decoder(hints[field.name]) for field in dataclasses.fields(hint)}

        def decode_record(plain: dict[str, Any]) -> Any:
            return hint(**{name: decoders[name](item) for name, item in plain.items() if name in decoders})

        return decode_record
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            item_decoder = _decoder(arguments[0])
            if item_decoder is _identity:
                return tuple
            return lambda items: tuple([item_decoder(item) for item in items])
        decoders_in_order = [_decoder(argument) for argument in arguments]
        return lambda items: tuple(decoder(item) for decoder, item in zip(decoders_in_order, items, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        value_decoder = _decoder(arguments[1])
        if value_decoder is _identity:
            return _identity
        return lambda items: {key: value_decoder(item) for key, item in items.items()}
    if origin in (typing.Union, types.UnionType):
        inner = [argument for argument in arguments if argument is not type(None)]
        if len(inner) == 1:
            inner_decoder = _decoder(inner[0])
            if inner_decoder is _identity:
                return _identity
            return lambda item: None if item is None else inner_decoder(item)
        return _decoder(float) if float in inner else _identity
    if hint is float:
        return _float
    return _identity


def _identity(item: Any) -> Any:
    return item


def _float(item: Any) -> Any:
    return _NOT_FINITE[item["float"]] if isinstance(item, dict) else item
