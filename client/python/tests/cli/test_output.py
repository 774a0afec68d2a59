"""Text and JSON as they are printed."""

import math

import numpy as np
import pytest

from braid.cli import output
from braid.cli.commands import evaluate
from braid.cli.commands.infer import values_text
from braid.cli.split import inference_text, training_text
from braid.results import Chunk, EvaluationResult


def test_numbers_are_flush_right_and_text_is_flush_left():
    rows = [("model", "version", "reason"), ("a", "7", ""), ("long", "12", "why")]
    assert output.table_text(rows) == (
        "model  version  reason\n"
        "a            7\n"
        "long        12  why\n"
    )


def test_a_table_without_rows_has_headings():
    assert output.table_text([("a", "b")]) == "a  b\n"


def test_a_wide_table_is_not_folded_outside_of_a_terminal():
    text = "word " * 100
    assert output.table_text([("reason",), (text,)]).splitlines()[1] == text.rstrip()


def test_markup_in_a_cell_is_text():
    assert output.table_text([("a",), ("[red]x[/red]",)]) == "a\n[red]x[/red]\n"


def test_control_characters_become_spaces():
    assert output.printable("a\x1b[31mb\nc\td\x7f\x9be") == "a [31mb c d  e"
    assert output.printable("naïve") == "naïve"
    assert output.table_text([("a",), ("x\ny",)]) == "a\nx y\n"


@pytest.mark.parametrize("size, text", [
    (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 50, "3072.0 TiB"),
])
def test_bytes(size, text):
    assert output.bytes_text(size) == text


def test_json_has_null_for_numbers_that_are_not_finite():
    assert output.json_text({"a": [1.5, math.nan], "b": -math.inf, "c": "é"}) == (
        '{"a":[1.5,null],"b":null,"c":"é"}'
    )


@pytest.mark.parametrize("array, text", [
    (np.array(7), "7"),
    (np.array([0.25, -1e-9], np.float32), "[0.25, -1e-09]"),
    (np.array([[1, 2], [3, 4]]), "[[1, 2],\n [3, 4]]"),
    (np.array([[[1, 2]], [[3, 4]]]), "[[[1, 2]],\n [[3, 4]]]"),
    (np.array([True, False]), "[true, false]"),
    (np.array([1], np.float16), "[1]"),
    (np.array([1 / 3, 1e6, math.nan]), "[0.333333, 1e+06, nan]"),
    (np.empty((0, 3)), "[]"),
])
def test_values_are_nested_as_the_shape_is(array, text):
    assert values_text(array) == text


def chunk(stage, device, rows, inputs, outputs):
    return Chunk(device, rows, stage, tuple(inputs), tuple(outputs))


def test_split_of_an_inference():
    chunks = [Chunk(f"cpu:{number}", 10) for number in range(3)]
    assert inference_text({"x": (30, 5)}, {"output__0": (30, 2)}, chunks) == (
        "device  rows  in         out\n"
        "cpu:0     10  x [10, 5]  output__0 [10, 2]\n"
        "cpu:1     10  x [10, 5]  output__0 [10, 2]\n"
        "cpu:2     10  x [10, 5]  output__0 [10, 2]\n"
        "total     30  x [30, 5]  output__0 [30, 2]\n"
    )
    assert inference_text({"x": (3,)}, {}, []) == ""


def test_split_leaves_tensors_without_the_batch_whole():
    chunks = [Chunk("cuda:0/1", 2), Chunk("cuda:1", 1)]
    assert inference_text({"x": (3,), "scale": (1, 4)}, {"y": (3,), "z": ()}, chunks) == (
        "device    rows  in                   out\n"
        "cuda:0/1     2  x [2], scale [1, 4]  y [2], z []\n"
        "cuda:1       1  x [1], scale [1, 4]  y [1], z []\n"
        "total        3  x [3], scale [1, 4]  y [3], z []\n"
    )


def test_split_of_a_training_step_has_a_table_for_each_stage():
    assert training_text([
        chunk("features", "cpu:0", 2, [(2,)], [(2, 4)]),
        chunk("features", "cpu:1", 1, [(1,)], [(1, 4)]),
        chunk("classifier", "cpu:0", 3, [(3, 4)], [(3,), (7, 3)]),
    ]) == (
        "stage features\n"
        "device  rows  in   out\n"
        "cpu:0      2  [2]  [2, 4]\n"
        "cpu:1      1  [1]  [1, 4]\n"
        "total      3  [3]  [3, 4]\n"
        "stage classifier\n"
        "device  rows  in      out\n"
        "cpu:0      3  [3, 4]  [3], [7, 3]\n"
        "total      3  [3, 4]  [3], [7, 3]\n"
    )
    assert training_text([]) == ""


def test_split_gathers_numbers_into_one_for_each_chunk():
    assert training_text([
        chunk("", "cpu:0", 5, [(5,)], [()]), chunk("", "cpu:1", 5, [(5,)], [()]),
    ]) == (
        "device  rows  in    out\n"
        "cpu:0      5  [5]   []\n"
        "cpu:1      5  [5]   []\n"
        "total     10  [10]  [2]\n"
    )


def evaluation(loss=0.25, confusion=None):
    metrics = {"accuracy": 0.875, "top_k": 1.0}
    return EvaluationResult(loss, 100, metrics, confusion, 7)


def test_evaluation_has_a_line_for_each_figure():
    assert evaluate.text(evaluation()) == (
        "metric    value\n"
        "loss       0.25\n"
        "accuracy  0.875\n"
        "top_k         1\n"
        "rows        100\n"
        "step          7\n"
    )
    assert "loss" not in evaluate.text(evaluation(loss=None))


def test_evaluation_has_the_confusion_matrix_below():
    text = evaluate.text(evaluation(confusion=np.array([[50, 2], [3, 45]])))
    assert text.partition("\n\n")[2] == (
        "target  as 0  as 1\n"
        "     0    50     2\n"
        "     1     3    45\n"
    )


def test_evaluation_as_json():
    assert evaluate.as_json(evaluation(confusion=np.eye(2, dtype=np.int64))) == {
        "loss": 0.25, "rows": 100, "step": 7, "metrics": {"accuracy": 0.875, "top_k": 1.0},
        "confusion": [[1, 0], [0, 1]],
    }
    assert evaluate.as_json(evaluation(loss=None)).keys() == {"rows", "step", "metrics"}
