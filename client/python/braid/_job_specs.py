"""Conversion of job specs, dicts with the keys of a YAML spec, to braid.v1.JobSpec and back.

A ValueError names the path of the key: "data.inputs.x.dtyp: unknown key (expected one of …)".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from braid import _decode_specs, _fields, _options, _protocol, _specs
from braid._fields import Field, Table, choice, flag, integer, number, text, texts, within
from braid._sections import group, read, section, set_fields, write

_JobSpec = _protocol.message("braid.v1.JobSpec")

_EVERY = re.compile(r"([1-9][0-9]*) (epoch|step)s?")
# Options of a trainer that a job does not have.
_EXCLUDED_OPTIONS = ("idle_timeout",)


def _put_columns(message: Any, key: str, value: Any) -> None:
    """Sets the names of one column, "area", or of several, ["area", "rooms"]."""
    if not isinstance(value, (str, list, tuple)) or not value:
        raise ValueError(f"{key}: {value!r} (expected a column, or a list of columns)")
    texts("columns").put(message, key, [value] if isinstance(value, str) else value)


def _get_columns(present: Mapping[str, Any]) -> str | list[str] | None:
    columns = list(present.get("columns", ()))
    return columns[0] if len(columns) == 1 else columns or None


def _put_scale(message: Any, key: str, value: Any) -> None:
    number("scale").put(message, key, value)
    if message.scale == 0:
        raise ValueError(f"{key}: {value!r} (with this scale, all values would become 0)")


def _put_version(message: Any, key: str, value: Any) -> None:
    if isinstance(value, str):
        raise ValueError(f"{key}: {value!r} (expected a number; labels are not possible in a job)")
    integer("version").put(message, key, value)


_COLUMN: Table = {
    "column": Field(_put_columns, _get_columns),
    "dtype": text("datatype"),
    "scale": Field(_put_scale, number("scale").get),
    "decode": _decode_specs.decode("decode"),
    "evaluation_decode": _decode_specs.decode("evaluation_decode"),
}
_VERSION = Field(_put_version, integer("version").get)


def _columns(name: str) -> Field:
    """Field of columns by tensor: {"x": "image"}, {"x": ["a", "b"]}, {"x": {"column": "image",
    "dtype": "FP32"}}."""

    def put(message: Any, key: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise ValueError(f"{key}: {value!r} (expected a column for each name)")
        for tensor, column in value.items():
            entry = getattr(message, name).add(name=str(tensor))
            if column is not None:
                column = column if isinstance(column, Mapping) else {"column": column}
                write(entry, column, _COLUMN, f"{key}.{tensor}")

    def get(present: Mapping[str, Any]) -> Any:
        columns = {}
        for column in present.get(name, ()):
            values = read(set_fields(column), _COLUMN)
            columns[column.name] = (
                values.get("column", column.name) if set(values) <= {"column"} else values
            )
        return columns or None

    return Field(put, get)


def _outputs() -> Field:
    """Field of output columns by output of the model: {"logits": "score"}."""

    def put(message: Any, key: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise ValueError(f"{key}: {value!r} (expected a column for each output)")
        for output, column in value.items():
            text("column").put(message.outputs.add(name=str(output)), f"{key}.{output}", column)

    def get(present: Mapping[str, Any]) -> Any:
        outputs = present.get("outputs", ())
        return {output.name: output.column or output.name for output in outputs} or None

    return Field(put, get)


def _put_every(message: Any, key: str, value: Any) -> None:
    match = _EVERY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{key}: {value!r} (expected an interval, such as 1 epoch or 500 steps)")
    setattr(message.every, f"{match[2]}s", int(match[1]))


def _get_every(present: Mapping[str, Any]) -> str | None:
    if "every" not in present:
        return None
    unit = present["every"].WhichOneof("unit")
    if unit is None:
        return None
    count = getattr(present["every"], unit)
    return f"{count} {unit.removesuffix('s') if count == 1 else unit}"


def _put_optimizer(message: Any, key: str, value: Any) -> None:
    message.optimizer.CopyFrom(_specs.optimizer_to_proto(value))


def _get_optimizer(present: Mapping[str, Any]) -> Any:
    return _specs.optimizer_from_proto(present["optimizer"]) if "optimizer" in present else None


_ON_UNREADABLE = choice("on_unreadable", {"fail": 1, "skip": 2})
_EVALUATE: Table = {
    "path": text("path"),
    "every": Field(_put_every, _get_every),
    "metrics": texts("metrics"),
    "k": integer("k"),
    "batch_size": integer("batch_size"),
}
_EARLY_STOPPING: Table = {
    "metric": text("metric"),
    "mode": choice("mode", {"min": 1, "max": 2}),
    "patience": integer("patience"),
    "min_delta": number("min_delta"),
}
_SPEC: Table = {"tags": texts("tags"), "priority": integer("priority")}
_TRAIN: Table = {
    "model": text("model"),
    "version": _VERSION,
    "from_trainer": text("from_trainer"),
    "from_checkpoint": text("from_checkpoint"),
    "data": group({
        "path": within("data", text("path")),
        "inputs": within("data", _columns("inputs")),
        "targets": within("data", _columns("targets")),
        "on_unreadable": within("data", _ON_UNREADABLE),
        "split": group({"validation": number("validation_split")}),
        "weights": text("weight_column"),
    }),
    "evaluate": section("evaluation", _EVALUATE),
    "optimizer": Field(_put_optimizer, _get_optimizer),
    "epochs": integer("epochs"),
    "steps": integer("steps"),
    "batch_size": integer("batch_size"),
    "shuffle": flag("shuffle"),
    "drop_last": flag("drop_last"),
    "publish": choice("publish", {"nothing": 1, "last": 2, "best": 3}),
    "best_metric": text("best_metric"),
    "early_stopping": section("early_stopping", _EARLY_STOPPING),
    **{
        key: within("options", field)
        for key, field in _options.OPTIONS.items()
        if key not in _EXCLUDED_OPTIONS
    },
}  # fmt: skip
_INFER: Table = {
    "model": text("model"),
    "version": _VERSION,
    "data": section("data", {
        "path": text("path"),
        "inputs": _columns("inputs"),
        "on_unreadable": _ON_UNREADABLE,
    }),
    "output": section("output", {
        "path": text("path"),
        "format": choice("format", {"parquet": 1, "npy": 2, "jsonl": 3}),
        "keep": texts("keep"),
        "outputs": _outputs(),
        "overwrite": flag("overwrite"),
    }),
    "batch_size": integer("batch_size"),
}  # fmt: skip
_KINDS: Mapping[str, Table] = {"train": _TRAIN, "infer": _INFER}
# Keys without which no job runs.
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "train": ("model", "data.path", "data.inputs", "optimizer", "batch_size"),
    "infer": ("model", "data.path", "data.inputs", "output.path"),
}


def to_proto(spec: Mapping[str, Any]) -> Any:
    """Converts a spec. The server checks the rest, such as columns and shapes.

    Raises ValueError for an unknown key, a value of a wrong type, or a missing key.
    """
    if not isinstance(spec, Mapping):
        raise ValueError(f"spec: {spec!r} (expected keys and values)")
    values = dict(spec)
    kind = values.pop("kind", None)
    if kind not in _KINDS:
        problem = "missing" if kind is None else repr(kind)
        raise ValueError(f"kind: {problem} (expected one of {', '.join(_KINDS)})")
    loss = values.pop("loss", None) if kind == "train" else None
    _check_keys(values, kind)
    for path in _REQUIRED[kind]:
        _check_given(values, path)
    proto = _JobSpec()
    job = getattr(proto, kind)
    job.SetInParent()
    write(proto, {key: values.pop(key) for key in _SPEC if key in values}, _SPEC, "")
    write(job, values, _KINDS[kind], "")
    if kind == "train":
        _add_losses(job, loss, values)
    return proto


def from_proto(proto: Any) -> dict[str, Any]:
    """Returns the spec for which `to_proto` returns `proto`, without loss modules."""
    kind = proto.WhichOneof("kind")
    if kind not in _KINDS:
        return {}
    job = getattr(proto, kind)
    spec = {
        "kind": kind,
        **read(set_fields(job), _KINDS[kind]),
        **read(set_fields(proto), _SPEC),
    }
    if kind == "train" and job.losses:
        losses = [_specs.loss_from_proto(loss) for loss in job.losses]
        spec["loss"] = losses[0] if len(losses) == 1 else losses
    return spec


def _check_keys(values: Mapping[str, Any], kind: str) -> None:
    known = ["kind", *_KINDS[kind], *(["loss"] if kind == "train" else []), *_SPEC]
    for key in values:
        if key not in known:
            raise ValueError(f"{key}: unknown key (expected one of {', '.join(known)})")


def _check_given(values: Any, path: str) -> None:
    for key in path.split("."):
        # A value of another type is found when it is converted.
        if isinstance(values, Mapping) and values.get(key) in (None, "", {}):
            value = values.get(key)
            raise ValueError(
                f"{path}: missing" if value is None else f"{path}: {value!r} (expected a value)"
            )
        values = values[key] if isinstance(values, Mapping) else values


def _add_losses(job: Any, loss: Any, values: Mapping[str, Any]) -> None:
    lengths = [key for key in ("epochs", "steps") if values.get(key) is not None]
    if len(lengths) != 1:
        problem = "given with epochs" if lengths else "missing"
        raise ValueError(f"{'steps' if lengths else 'epochs'}: {problem} (expected epochs or steps)")
    loss_mode = values.get("loss_mode") or "central"
    if loss_mode == "client":
        raise ValueError("loss_mode: 'client' (a job has no client to compute the loss)")
    job.losses.extend(_specs.losses_to_proto(loss, loss_mode))
