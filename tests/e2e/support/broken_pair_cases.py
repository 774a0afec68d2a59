"""Defects of an exported pair, with words that the error must contain."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch
from e2e.support.broken_pairs import (
    GONE,
    Broken,
    Change,
    a_folder,
    add,
    config,
    drop,
    file_is,
    graph,
    header_with,
    manifest,
    outside,
    rewritten,
    tensors,
    weights_are,
)

MIB = 1 << 20
DEEP = b"[" * 200_000
PROGRAM = "parts.0.programs.0"
EVAL, FORWARD, BACKWARD = (f"{PROGRAM}.{kind}" for kind in ("eval", "forward", "backward"))
GRAPH = "graph_module.graph"
MANIFEST = "extra/train.json"
# Name of the file in error messages.
IN_PROGRAM = "parts[0].programs[0]"


def archive(name: str, change: Change, *words: str) -> Broken:
    return Broken(name, ("model.pt2", *words), change)


def weights(name: str, change: Change, *words: str) -> Broken:
    return Broken(name, ("model.safetensors", *words), change)


def no_weights(version: Path) -> None:
    (version / "model.safetensors").unlink()


def weights_folder(version: Path) -> None:
    no_weights(version)
    (version / "model.safetensors").mkdir()


def weights_as_archive(version: Path) -> None:
    shutil.copy(version / "model.safetensors", version / "model.pt2")


def renamed(role: str, to: str) -> Any:
    """Gives all slots of one role the same name."""
    return lambda slots: [{**s, "name": to} if s["role"] == role else s for s in slots]


def exchanged(slots: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Swaps the names of the first two tensors that forward saves."""
    first, second = [place for place, slot in enumerate(slots) if slot["role"] == "saved"][:2]
    names = {first: slots[second]["name"], second: slots[first]["name"]}
    return [{**s, "name": names.get(place, s["name"])} for place, s in enumerate(slots)]


ARCHIVES = [
    archive("truncated", file_is(lambda old: old[: len(old) * 2 // 3]), "damaged"),
    archive(
        "flipped",
        file_is(lambda old: old.replace(b'"inputs"', b'"hnputs"', 1)),
        "damaged at 'models/",
        "its checksum differs",
    ),
    archive("cut_at_the_end", file_is(lambda old: old[:-10]), "damaged"),
    archive("empty_file", file_is(lambda _: b""), "is empty"),
    archive("no_archive", file_is(lambda _: b"no archive" * 100), "not a zip archive"),
    archive("weights_as_archive", weights_as_archive, "not a zip archive"),
    archive("a_folder", a_folder, "is not a regular file"),
    archive(
        "bomb",
        rewritten(add("extra/zeros", bytes(64 * MIB)), zipfile.ZIP_DEFLATED),
        "unpack to more than 16777216 bytes",
    ),
    archive("outside", rewritten(outside), "damaged"),
    archive("no_manifest", rewritten(drop(MANIFEST)), "not a supported package", "braid.export"),
    archive("no_json", rewritten(add(MANIFEST, b'{"format"')), "train.json", "not a JSON object"),
    archive("deep_json", rewritten(add(MANIFEST, DEEP)), "train.json", "not a JSON object"),
    archive("no_text", rewritten(add(MANIFEST, bytes(range(256)))), "train.json", "not a JSON object"),
    archive("no_graph", rewritten(drop("models/bw.json")), "'bw'", "not in the package"),
    archive("graph_no_json", rewritten(add("models/fw.json", b"graph")), "'fw'", "object"),
    archive("graph_deep_json", rewritten(add("models/fw.json", DEEP)), "'fw'", "object"),
]

WEIGHTS = [
    weights("no_weights", no_weights, "No such file"),
    weights("weights_folder", weights_folder, "not a regular file"),
    weights("weights_cut", weights_are(lambda old: old[:-7]), "'last.bias'", "data_offsets"),
    weights("weights_longer", weights_are(lambda old: old + b"1234"), "expected"),
    weights("weights_tiny", weights_are(lambda old: old[:5]), "5 bytes", "8"),
    weights("header_vast", weights_are(lambda old: b"\xff" * 8 + old[8:]), "header", "at most"),
    weights("header_no_json", weights_are(lambda old: old[:8] + b"x" + old[9:]), "header"),
    weights("weight_missing", tensors(lambda t: t.pop("last.bias")), "no tensor 'last.bias'"),
    weights("weight_more", tensors(lambda t: t.update(more=torch.ones(2))), "'more'"),
    weights(
        "weight_shape",
        tensors(lambda t: t.update({"last.weight": torch.ones(8, 5)})),
        "'last.weight' is FP32[8, 5]",
        "FP32[5, 8]",
    ),
    weights(
        "weight_dtype",
        tensors(lambda t: t.update({"last.bias": torch.ones(5).double()})),
        "'last.bias' is FP64[5]",
        "FP32[5]",
    ),
    weights(
        "weight_too_long",
        header_with(lambda h: h["last.bias"].update(data_offsets=[0, 32])),
        "'last.bias'",
        "expected 20",
    ),
    weights(
        "weight_unknown_type",
        header_with(lambda h: h["last.bias"].update(dtype="F4")),
        "'last.bias'",
        "'F4'",
        "F32",
    ),
]

HEADS = [
    manifest("other_format", "format", "other-pair", "format", "other-pair"),
    manifest("chain_unknown", "chains", [["stem", "head"]], "chains", "stem"),
    manifest("other_schema", "schema_version", 4, "schema_version: 4", "expected 1", "braid.export"),
    manifest("schema_text", "schema_version", "1", "schema_version: expected an integer"),
    manifest("no_schema", "schema_version", GONE, 'has no "schema_version"'),
    manifest("no_torch", "torch_version", GONE, 'has no "torch_version"'),
    manifest("other_device", "device", "tpu", "device: 'tpu'", '"cpu" or "cuda"'),
    manifest("for_gpus", "device", "cuda", "exported for GPUs", "cpu"),
    manifest("no_state", "state", GONE, 'has no "state"'),
    manifest("state_kind", "state.0.kind", "thing", "state[0].kind: 'thing'", '"parameter"'),
    manifest("state_dtype", "state.0.dtype", "FP64", "FP32[8, 10]", "declares FP64[8, 10]"),
    manifest("state_no_dtype", "state.0.dtype", "FP31", "state[0].dtype: 'FP31'", "BF16"),
    manifest("state_shape", "state.0.shape", [10, 8], "FP32[8, 10]", "declares FP32[10, 8]"),
    manifest("state_negative", "state.0.shape", [-1, 10], "state[0].shape[0]: -1"),
    manifest("state_vast", "state.0.shape", [1 << 40, 1 << 40], "state[0]", "too many"),
    manifest("state_renamed", "state.1.name", "more", "inputs[1].name: 'frozen.bias'"),
    manifest("state_twice", "state.1.name", "frozen.weight", "'frozen.weight'", "duplicate"),
    manifest("state_missing", "state.6", GONE, "'norm.num_batches_tracked' is unknown"),
    manifest("state_trained", "state.0.trainable", "yes", "state[0].trainable", "true or false"),
    manifest("tied_to_nothing", "state.1.tied_to", "nothing", "state[1].tied_to: 'nothing'"),
    manifest("tied_to_other", "state.1.tied_to", "frozen.weight", "state[1].tied_to", "shape"),
]

PARTS = [
    manifest("no_parts", "parts", [], "parts: the first element is not the whole model"),
    manifest("parts_object", "parts", {}, "parts: expected a list"),
    manifest("part_path", "parts.0.path", "last", "parts: the first element is not the whole model"),
    manifest("no_inputs", "parts.0.inputs", [], "parts[0].inputs: empty"),
    manifest("input_dtype", "parts.0.inputs.0.dtype", "INT64", "FP32[-1, 10]", "INT64[-1, 10]"),
    manifest("input_size", "parts.0.inputs.0.shape.1", 11, "FP32[-1, 10]", "FP32[-1, 11]"),
    manifest("input_rank", "parts.0.inputs.0.shape", ["batch"], "FP32[-1, 10]", "FP32[-1]"),
    manifest("input_rows", "parts.0.inputs.0.shape.0", 2, "parts[0].inputs[0].shape[0]", "string"),
    manifest("input_scalar", "parts.0.inputs.0.shape", [], "parts[0]: input 'x'", "batch"),
    manifest(
        "output_more",
        "parts.0.outputs",
        lambda outputs: [*outputs, {**outputs[0], "name": "another"}],
        f"{IN_PROGRAM}.eval: 1 outputs (expected 2)",
    ),
    manifest("output_size", "parts.0.outputs.0.shape.1", 6, "FP32[-1, 5]", "[-1, 6]"),
    manifest("output_dtype", "parts.0.outputs.0.dtype", "FP64", "FP32[-1, 5]", "FP64[-1, 5]"),
    manifest("rows_text", "parts.0.min_training_rows", "two", "min_training_rows", "integer"),
    manifest("no_rows", "parts.0.min_training_rows", GONE, 'has no "min_training_rows"'),
    manifest("no_programs", "parts.0.programs", [], 'not of precision "model"'),
    manifest("no_such_precision", f"{PROGRAM}.precision", "int4", "precision: 'int4'"),
]

SLOTS = [
    manifest("no_eval", EVAL, GONE, f'{IN_PROGRAM}: has no "eval"'),
    manifest("no_forward", FORWARD, GONE, IN_PROGRAM, 'a "backward" without a "forward"'),
    manifest("graph_missing", f"{EVAL}.graph", "other", "'other'", "not in the package"),
    manifest("graph_path", f"{EVAL}.graph", "../extra/train", "not in the package"),
    manifest("graph_another", f"{EVAL}.graph", "fw", "graph 'fw': ", "train.json declares 1"),
    manifest("slot_less", f"{EVAL}.inputs", lambda s: s[:-1], "10 inputs", "declares 9"),
    manifest(
        "slot_more",
        f"{BACKWARD}.outputs",
        lambda s: [*s, dict(s[0])],
        "'bw'",
        "4 outputs",
        "declares 5",
    ),
    manifest("slots_reversed", f"{FORWARD}.inputs", lambda s: s[::-1], "'fw'", "input_specs[1]"),
    manifest("slot_unknown", f"{FORWARD}.inputs.0.name", "nothing", "inputs[0].name: 'nothing'"),
    manifest("slot_unnamed", f"{FORWARD}.inputs.0.name", GONE, 'inputs[0]: has no "name"'),
    manifest("role_unknown", f"{FORWARD}.inputs.0.role", "weight", "inputs[0].role: 'weight'"),
    manifest("role_misplaced", f"{FORWARD}.inputs.0.role", "saved", "inputs[0].role: 'saved'"),
    manifest("output_left_out", f"{EVAL}.outputs", [], "eval: 0 outputs (expected 1)"),
    manifest(
        "saved_unknown", f"{BACKWARD}.inputs", renamed("saved", "no"), "backward.inputs", "'no'"
    ),
    manifest(
        "saved_twice", f"{FORWARD}.outputs", renamed("saved", "so"), "forward.outputs", "'so'"
    ),
    manifest(
        "gradient_of_a_buffer",
        f"{BACKWARD}.outputs.0.name",
        "norm.running_mean",
        "backward.outputs[0].name: 'norm.running_mean'",
    ),
    manifest(
        "gradient_of_a_frozen_parameter",
        f"{BACKWARD}.outputs.0.name",
        "frozen.weight",
        "backward.outputs[0].name: 'frozen.weight' is not trainable",
    ),
    manifest(
        "depends_on_nothing",
        f"{BACKWARD}.outputs.0.depends_on",
        ["nothing"],
        "outputs[0].depends_on: 'nothing'",
    ),
    manifest(
        "saved_exchanged",
        f"{BACKWARD}.inputs",
        exchanged,
        "graph 'bw'",
        "saved tensor of shape [-1, 8] (the forward graph returns [8])",
    ),
    manifest("part_twice", "parts", lambda parts: parts * 2, "parts[1]", "duplicate"),
    manifest("output_rows", "parts.0.outputs.0.shape.0", "4*batch", "'4*batch'", '"batch"'),
    manifest("no_depends", f"{BACKWARD}.outputs.0.depends_on", GONE, 'has no "depends_on"'),
]

GRAPHS = [
    graph(
        "graph_operator",
        "eval",
        f"{GRAPH}.nodes.0.target",
        "torch.ops.aten.nothing.default",
        "aten::nothing",
    ),
    graph("graph_without_nodes", "eval", f"{GRAPH}.nodes", [], "outputs[0]", "is undefined"),
    graph("graph_without_inputs", "eval", f"{GRAPH}.inputs", GONE, "graph 'eval'", 'no "inputs"'),
    graph("graph_fewer_inputs", "fw", f"{GRAPH}.inputs", [], "has 0 inputs"),
    graph("graph_without_outputs", "fw", f"{GRAPH}.outputs", [], "has 0 outputs"),
    graph(
        "graph_argument",
        "bw",
        f"{GRAPH}.nodes.0.inputs.0.arg",
        "1e+308",
        "graph 'bw'",
        "nodes[0].inputs[0].arg: expected an object",
    ),
    graph("graph_without_signature", "fw", "graph_module.signature", GONE, 'no "signature"'),
    graph("graph_without_values", "fw", f"{GRAPH}.tensor_values", {}, "tensor_values: has no"),
]

ANOTHER = '}, { name: "z" data_type: TYPE_FP32 dims: [ 1 ] }'
CONFIGS = [
    config("config_size", "[ 10 ]", "[ 11 ]", "'x' is configured as FP32[rows, 11]", "FP32[-1, 10]"),
    config("config_rank", "[ 10 ]", "[ 2, 5 ]", "'x' is configured as FP32[rows, 2, 5]", "FP32[-1, 10]"),
    config("config_dtype", '"x" data_type: TYPE_FP32', '"x" data_type: TYPE_INT64', "'x' is configured as INT64"),
    config("config_output", '"y" data_type: TYPE_FP32', '"y" data_type: TYPE_FP64', "'y' is configured as FP64"),
    config("config_more_inputs", "dims: [ 10 ] }", f"dims: [ 10 ] {ANOTHER}", "'z'", "takes x"),
    config("config_more_outputs", "dims: [ 5 ] }", f"dims: [ 5 ] {ANOTHER}", "'z'", "returns 1 tensor"),
    config("config_output_size", "[ 5 ]", "[ 6 ]", "'y'", "6", "5"),
    config("config_no_batch", "size: 8", "size: 0", "max_batch_size: 0", "'x'", "1 or more"),
]

BROKEN = {
    each.name: each
    for each in [*ARCHIVES, *WEIGHTS, *HEADS, *PARTS, *SLOTS, *GRAPHS, *CONFIGS]
}
