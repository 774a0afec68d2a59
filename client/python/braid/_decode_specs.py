"""Conversion of `decode` in a spec to braid.v1.Decode and back.

    decode: {image: {transforms: [{resize: 256}, {center_crop: 224}, to_float]}}
    decode: {tokenizer: tokenizer.json, max_length: 128}
    decode: {paths: true}

A transform is a name with its arguments, {resize: {size: 256, interpolation: bicubic}}, with its
first argument only, {resize: 256}, or without any, to_float.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from braid._fields import (
    Field,
    Table,
    choice,
    flag,
    integer,
    number,
    numbers,
    set_value,
    text,
    within,
)
from braid._sections import read, section, set_fields, write


def _put_size(message: Any, key: str, value: Any) -> None:
    """Sets one size, 224, or height and width, [224, 256]."""
    sizes = list(value) if isinstance(value, (list, tuple)) else [value]
    integers = all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
    if not integers or not 1 <= len(sizes) <= 2:
        raise ValueError(f"{key}: {value!r} (expected an integer, or height and width)")
    set_value(message, "size", key, sizes)


def _get_size(present: Mapping[str, Any]) -> int | list[int] | None:
    sizes = list(present.get("size", ()))
    return sizes[0] if len(sizes) == 1 else sizes or None


_SIZE = Field(_put_size, _get_size)
_INTERPOLATION = choice("interpolation", {"bilinear": 1, "nearest": 2, "bicubic": 3})
# Arguments of each transform. A transform may be written with the first one only.
_TRANSFORMS: Mapping[str, Table] = {
    "resize": {"size": _SIZE, "interpolation": _INTERPOLATION},
    "center_crop": {"size": _SIZE},
    "random_crop": {"size": _SIZE, "padding": integer("padding")},
    "random_resized_crop": {
        "size": _SIZE,
        "scale": numbers("scale"),
        "ratio": numbers("ratio"),
        "interpolation": _INTERPOLATION,
    },
    "random_horizontal_flip": {"p": number("p")},
    "random_vertical_flip": {"p": number("p")},
    "to_float": {"scale": flag("scale")},
    "normalize": {"mean": numbers("mean"), "std": numbers("std")},
}


def _put_transform(message: Any, key: str, value: Any) -> None:
    if isinstance(value, str):
        value = {value: {}}
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ValueError(f"{key}: {value!r} (expected one transform, such as {{resize: 256}})")
    name, arguments = next(iter(value.items()))
    if name not in _TRANSFORMS:
        known = ", ".join(_TRANSFORMS)
        raise ValueError(f"{key}: unknown transform {name!r} (expected one of {known})")
    table = _TRANSFORMS[name]
    if arguments is None:
        arguments = {}
    elif not isinstance(arguments, Mapping):
        arguments = {next(iter(table)): arguments}
    transform = getattr(message, name)
    transform.SetInParent()
    write(transform, arguments, table, f"{key}.{name}")


def _get_transform(message: Any) -> Any:
    name = message.WhichOneof("kind")
    if name is None:
        return {}
    table = _TRANSFORMS[name]
    arguments = read(set_fields(getattr(message, name)), table)
    if not arguments:
        return name
    first = next(iter(table))
    return {name: arguments[first] if list(arguments) == [first] else arguments}


def _put_transforms(message: Any, key: str, value: Any) -> None:
    if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
        raise ValueError(f"{key}: {value!r} (expected a list of transforms)")
    for index, each in enumerate(value):
        _put_transform(message.transforms.add(), f"{key}[{index}]", each)


def _get_transforms(present: Mapping[str, Any]) -> list[Any] | None:
    return [_get_transform(each) for each in present.get("transforms", ())] or None


_IMAGE: Table = {
    "channels": integer("channels"),
    "transforms": Field(_put_transforms, _get_transforms),
    "max_pixels": integer("max_pixels"),
}
_TEXT: Table = {
    "tokenizer": text("tokenizer"),
    "max_length": integer("max_length"),
    "truncate": flag("truncate"),
    "special_tokens": flag("special_tokens"),
    "pad_to_max_length": flag("pad_to_max_length"),
    "pad_token": integer("pad_token"),
    "mask": text("mask"),
}
_DECODE: Table = {
    "image": section("image", _IMAGE),
    **{key: within("text", field) for key, field in _TEXT.items()},
    "paths": flag("paths"),
}


def decode(name: str) -> Field:
    """Field of a submessage braid.v1.Decode."""
    whole = section(name, _DECODE)

    def put(message: Any, key: str, value: Any) -> None:
        if isinstance(value, Mapping):
            texts = [each for each in value if each in _TEXT]
            if texts and "image" in value:
                raise ValueError(f"{key}.{texts[0]}: cannot be combined with 'image'")
            if texts and value.get("tokenizer") is None:
                raise ValueError(f"{key}.tokenizer: missing (expected the path of a tokenizer.json)")
        whole.put(message, key, value)

    return Field(put, whole.get)
