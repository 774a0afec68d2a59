"""Tests that check_protocol.py reports violations of each rule."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorSet

sys.path.insert(0, str(Path(__file__).parents[1]))
import check_protocol  # noqa: E402

# Text, so that each test can change a few words.
RELEASED = """
file {
  package: "braid.v1"
  message_type {
    name: "Step"
    field { name: "rows" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 }
    field { name: "loss" number: 2 label: LABEL_OPTIONAL type: TYPE_DOUBLE oneof_index: 0 }
    field { name: "parts" number: 3 label: LABEL_REPEATED type: TYPE_MESSAGE
            type_name: ".braid.v1.Step.Part" }
    nested_type {
      name: "Part"
      field { name: "device" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    }
    oneof_decl { name: "result" }
  }
  enum_type {
    name: "Mode"
    value { name: "MODE_UNSPECIFIED" number: 0 }
    value { name: "MODE_TRAIN" number: 1 }
  }
  service {
    name: "Training"
    method { name: "Run" input_type: ".braid.v1.Step" output_type: ".braid.v1.Step" }
    method { name: "Watch" input_type: ".braid.v1.Step" output_type: ".braid.v1.Step"
             server_streaming: true }
  }
}
file { package: "other" message_type { name: "Foreign" } }
"""
ROWS = 'field { name: "rows" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 }'
TRAIN = 'value { name: "MODE_TRAIN" number: 1 }'
RUN = 'method { name: "Run" input_type: ".braid.v1.Step" output_type: ".braid.v1.Step" }'
MODE = RELEASED[RELEASED.index("enum_type") : RELEASED.index("service")]


def errors(*replacements: tuple[str, str]) -> list[str]:
    """Returns what is said of RELEASED after the replacements, each of which must change it."""
    changed = RELEASED
    for old, new in replacements:
        assert changed.count(old) == 1, old
        changed = changed.replace(old, new)
    return check_protocol.compare(
        *(
            check_protocol.read_package(text_format.Parse(text, FileDescriptorSet()))
            for text in (RELEASED, changed)
        )
    )


def test_same_descriptors_pass() -> None:
    assert errors() == []


@pytest.mark.parametrize(
    "old, new",
    [
        (ROWS, ROWS + ROWS.replace("rows", "columns").replace("1", "9")),
        (TRAIN, TRAIN + 'value { name: "MODE_EVAL" number: 2 }'),
        (RUN, RUN + RUN.replace("Run", "Stop")),
        ('enum_type {\n    name: "Mode"', 'enum_type { name: "New" } enum_type { name: "Mode"'),
        ('name: "Foreign"', 'name: "Renamed"'),
        (ROWS, 'reserved_range { start: 1 end: 2 } reserved_name: "rows"'),
        (TRAIN, 'reserved_range { start: 1 end: 1 } reserved_name: "MODE_TRAIN"'),
    ],
    ids=[
        "new field",
        "new value",
        "new method",
        "new enum",
        "other package",
        "removed and reserved field",
        "removed and reserved value",
    ],
)
def test_compatible_change_passes(old: str, new: str) -> None:
    assert errors((old, new)) == []


KEPT = "removed (expected: kept, or number 1 and the name reserved)"


@pytest.mark.parametrize(
    "old, new, expected",
    [
        (ROWS, "", f"Step.rows: {KEPT}"),
        (ROWS, "reserved_range { start: 1 end: 2 }", f"Step.rows: {KEPT}"),
        (ROWS, 'reserved_name: "rows" reserved_range { start: 2 end: 5 }', f"Step.rows: {KEPT}"),
        (ROWS, ROWS.replace("1", "7"), "Step.rows: number changed to 7 (expected 1)"),
        (
            ROWS,
            ROWS.replace("rows", "count"),
            "Step.rows: number 1 now belongs to 'count' (expected 'rows')",
        ),
        (
            ROWS,
            ROWS.replace("INT64", "UINT32"),
            "Step.rows: type changed to 'uint32' (expected 'int64')",
        ),
        (
            ROWS,
            ROWS.replace("OPTIONAL", "REPEATED"),
            "Step.rows: type changed to 'repeated int64' (expected 'int64')",
        ),
        (
            "oneof_index: 0",
            "",
            "Step.loss: type changed to 'double' (expected 'double in oneof result')",
        ),
        (
            'type_name: ".braid.v1.Step.Part"',
            'type_name: ".braid.v1.Step"',
            "Step.parts: type changed to 'repeated .braid.v1.Step'"
            " (expected 'repeated .braid.v1.Step.Part')",
        ),
        (
            "type: TYPE_STRING",
            "type: TYPE_BYTES",
            "Step.Part.device: type changed to 'bytes' (expected 'string')",
        ),
        ('name: "Part"', 'name: "Chunk"', "Step.Part: removed (expected: kept)"),
        (TRAIN, "", f"Mode.MODE_TRAIN: {KEPT}"),
        (TRAIN, TRAIN.replace("1", "2"), "Mode.MODE_TRAIN: number changed to 2 (expected 1)"),
        (MODE, "", "Mode: removed (expected: kept)"),
        (RUN, "", "Training.Run: removed (expected: kept)"),
        (
            "server_streaming: true",
            "",
            "Training.Watch: signature changed to '(.braid.v1.Step) returns (.braid.v1.Step)'"
            " (expected '(.braid.v1.Step) returns (stream .braid.v1.Step)')",
        ),
        ('name: "Training"', 'name: "Trainers"', "Training: removed (expected: kept)"),
    ],
)
def test_incompatible_change_fails_with_the_name_of_the_field(
    old: str, new: str, expected: str
) -> None:
    assert errors((old, new)) == [f"braid.v1.{expected}"]


def run(*paths: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, check_protocol.__file__, *paths]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_protocol_of_this_checkout_is_compatible_with_the_last_release() -> None:
    done = run()
    assert (done.returncode, done.stderr) == (0, "")


def test_a_removed_field_of_the_real_protocol_is_an_error(tmp_path: Path) -> None:
    files = FileDescriptorSet.FromString(check_protocol.CURRENT.read_bytes())
    (file,) = (file for file in files.file if file.name == "braid/v1/device.proto")
    message = next(message for message in file.message_type if message.field)
    removed = message.field.pop(0)
    current = tmp_path / "changed.binpb"
    current.write_bytes(files.SerializeToString())
    done = run(check_protocol.RELEASED, current)
    assert done.returncode == 1
    assert done.stderr.startswith(f"braid.v1.{message.name}.{removed.name}: removed")


def test_descriptors_without_the_package_are_no_release(tmp_path: Path) -> None:
    empty = tmp_path / "empty.binpb"
    empty.write_bytes(b"")
    done = run(empty)
    assert done.returncode == 1
    assert "the released descriptors have no messages of braid.v1" in done.stderr
