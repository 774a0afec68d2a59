"""Losses, optimizers and other specifications of the command line, as messages of the protocol.

Fields have their names of training.proto, in any case: "lr", "class_weights". A value is a number,
a word (of an enumeration without its prefix: "bfloat16"), or true or false. After a ',', text
without a '=' is another value of a repeated field. bytes are read from a file. UsageError, with
what is known, for an unknown name and for a value that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from braid import _protocol
from braid.cli import errors

Loss = _protocol.message("braid.v1.Loss")
Optimizer = _protocol.message("braid.v1.Optimizer")
ParameterGroup = _protocol.message("braid.v1.ParameterGroup")
Stage = _protocol.message("braid.v1.Stage")

_LOSS_MODES = _protocol.message("braid.v1.TrainingOptions").DESCRIPTOR.fields_by_name["loss_mode"]
LOSS_MODE_MODEL = _LOSS_MODES.enum_type.values_by_name["LOSS_MODE_MODEL"].number

OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")
# PyTorch's name -> the protocol's.
SCHEDULES = {
    "StepLR": "step",
    "MultiStepLR": "multi_step",
    "ExponentialLR": "exponential",
    "CosineAnnealingLR": "cosine",
    "OneCycleLR": "one_cycle",
    "ReduceLROnPlateau": "plateau",
}
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_ELLIPSIS = "KEY=VALUE,…"


def set_fields(where: str, fields: str, message: Any) -> None:
    """Sets "key=value,key=value,…" in `message`. A key may be a path: "clipping.max_norm".

    where: the option, for errors.
    """
    target: Any = None
    field: FieldDescriptor | None = None
    for part in fields.split(","):
        key, equals, value = part.partition("=")
        if equals:
            target, field = _follow(where, key, message)
        elif field is not None and _repeated(field):
            value = part
        else:
            raise errors.usage(where, f"invalid value {part!r}", f"expected {_ELLIPSIS}")
        _set(f"{where}: {field.name}", field, value, target)


def parse_loss(spec: str) -> Any:
    """Parses "cross_entropy:label_smoothing=0.1", or "output=loss" for a model's own loss."""
    name, _, fields = spec.partition(":")
    if "=" in name:
        name, fields = "", spec
    loss = Loss(name=name)
    if fields:
        set_fields(f"--loss {name}".rstrip(), fields, loss)
    return loss


def parse_optimizer(spec: str) -> Any:
    """Parses "SGD:lr=0.1,momentum=0.9": PyTorch's name, in any case."""
    name, _, fields = spec.partition(":")
    if name.lower() not in Optimizer.DESCRIPTOR.fields_by_name:
        raise _unknown("--optimizer", "optimizer", name, OPTIMIZERS)
    optimizer = Optimizer()
    chosen = getattr(optimizer, name.lower())
    chosen.SetInParent()  # An optimizer with defaults alone is chosen, too.
    if fields:
        set_fields(f"--optimizer {name}", fields, chosen)
    return optimizer


def parse_schedule(spec: str, schedule: Any) -> None:
    """Parses "StepLR:step_size=10", by PyTorch's name or the protocol's, into `schedule`."""
    name, _, fields = spec.partition(":")
    known = {key.lower(): field for pair in SCHEDULES.items() for key in pair
             for field in (pair[1],)}  # fmt: skip
    if name.lower() not in known:
        raise _unknown("--schedule", "schedule", name, SCHEDULES)
    chosen = getattr(schedule, known[name.lower()])
    chosen.SetInParent()
    if fields:
        set_fields(f"--schedule {name}", fields, chosen)


def parse_stage(spec: str) -> Any:
    """Parses "features=cpu:0,cpu:1"; "=cpu:0" is the whole model."""
    path, equals, devices = spec.partition("=")
    if not equals or not all(devices.split(",")):
        expected = "expected PATH=DEVICE,…, such as features=cpu:0,cpu:1"
        raise errors.usage("--stage", f"invalid value {spec!r}", expected)
    return Stage(path=path, devices=devices.split(","))


def parse_group(spec: str) -> Any:
    """Parses "^features:lr=0.01,frozen=true". The pattern ends at the last ':'."""
    pattern, colon, fields = spec.rpartition(":")
    if not (pattern and colon):
        expected = f"expected PATTERN:{_ELLIPSIS}, such as bias$:lr=0.01"
        raise errors.usage("--group", f"invalid value {spec!r}", expected)
    group = ParameterGroup(pattern=pattern)
    set_fields(f"--group {pattern}", fields, group)
    return group


def _follow(where: str, key: str, message: Any) -> tuple[Any, FieldDescriptor]:
    """Returns the message that a path leads to, and the last field of the path."""
    path = key.lower().split(".")
    for index, name in enumerate(path):
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            raise _unknown(where, "key", key, _field_names(message.DESCRIPTOR))
        if index + 1 == len(path):
            break
        if field.message_type is None or _repeated(field):
            raise errors.usage(where, f"{key!r} is not a single field", f"see {_ELLIPSIS}")
        message = getattr(message, name)
    return message, field


def _set(where: str, field: FieldDescriptor, text: str, message: Any) -> None:
    """Sets the field, or adds to a repeated one."""
    if field.message_type is not None:
        names = ", ".join(f"{field.name}.{name}" for name in _field_names(field.message_type))
        raise errors.usage(where, "has fields of its own", f"expected one of: {names}")
    value = _value(where, field, text)
    try:
        if _repeated(field):
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
    except (ValueError, TypeError):
        raise errors.usage(where, f"{text} is out of range", "expected 64 bits at most") from None


def _value(where: str, field: FieldDescriptor, text: str) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return _enum_value(where, field.enum_type, text)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        if text.lower() not in _FLAGS:
            raise errors.usage(where, f"invalid value {text!r}", "expected true or false")
        return _FLAGS[text.lower()]
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return _read(where, text) if field.type == FieldDescriptor.TYPE_BYTES else text
    whole = kind != FieldDescriptor.CPPTYPE_DOUBLE
    try:
        if "_" in text:
            raise ValueError
        return int(text) if whole else float(text)
    except ValueError:
        expected = "expected a whole number" if whole else "expected a number"
        raise errors.usage(where, f"invalid value {text!r}", expected) from None


def _enum_value(where: str, kind: Any, text: str) -> int:
    prefix = kind.values_by_number[0].name.removesuffix("UNSPECIFIED")
    words = {value.name.removeprefix(prefix).lower(): value.number for value in kind.values[1:]}
    if text.lower() not in words:
        raise errors.usage(where, f"invalid value {text!r}", f"expected {', '.join(words)}")
    return words[text.lower()]


def _read(where: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        reason = error.strerror or str(error)
        raise errors.usage(where, f"cannot read {path!r}", reason) from None


def _repeated(field: FieldDescriptor) -> bool:
    # protobuf 6 has is_repeated and warns of `label`, protobuf 4 has only `label`.
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)


def _field_names(descriptor: Any) -> list[str]:
    """Names of the fields that a specification sets with KEY=VALUE."""
    return [field.name for field in descriptor.fields if field.name not in ("name", "pattern")]


def _unknown(where: str, what: str, name: str, known: Iterable[str]) -> Exception:
    return errors.usage(where, f"unknown {what} {name!r}", f"expected one of: {', '.join(known)}")
