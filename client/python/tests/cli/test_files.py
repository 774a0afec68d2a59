"""Arrays in .npy files."""

import click
import numpy as np
import pytest

from braid.cli import errors, files


@pytest.mark.parametrize("array", [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array([True, False]),
    np.array(7, np.int8),
    np.empty((0, 3), np.int64),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(3, dtype=">i4"),
])
def test_reads_what_numpy_writes(save, array):
    read = files.open_array(str(save("a", array)))
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)
    assert not (read.size and read.flags.writeable)


@pytest.mark.parametrize("array", [
    np.arange(6, dtype=np.float32).reshape(2, 3).T, np.array(7), np.empty((0, 3)),
])
def test_numpy_reads_what_is_written(tmp_path, array):
    path = str(tmp_path / "a.npy")
    files.write_array(path, array)
    np.testing.assert_array_equal(np.load(path), array)


def test_opening_does_not_read_the_array(tmp_path):
    path = tmp_path / "large.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 20, 1 << 10)}
        )
        file.truncate(file.tell() + (1 << 32))
    data = files.Dataset({"x": str(path)}, {})
    inputs, _ = data.gather(np.array([5, 3]))
    assert inputs["x"].shape == (2, 1 << 10)


@pytest.mark.parametrize("content, message", [
    (b"", "not a .npy file"),
    (b"PK\x03\x04 something else", "not a .npy file"),
    (b"\x93NUMPY\x03\x00", "not a .npy file: format 3.0, 1.0 and 2.0 are supported"),
])
def test_other_files_are_rejected(tmp_path, content, message):
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(click.UsageError, match="numpy.save") as caught:
        files.open_array(str(path))
    assert caught.value.message.startswith(f"{path}: {message}")


@pytest.mark.parametrize("array", [
    np.array(["a"]), np.array([1j]), np.array([(1, 2)], "i4,i4"), np.array([None]),
    np.zeros(2, np.longdouble), np.zeros(2, "M8[s]"),
])
def test_dtypes_without_a_datatype_are_rejected(save, array):
    path = save("a", array)
    with pytest.raises(click.UsageError) as caught:
        files.open_array(str(path))
    assert caught.value.message.startswith(f"{path}: has dtype {array.dtype} (expected bool, ")


@pytest.mark.parametrize("change", [-1, 1])
def test_files_of_another_size_than_their_header_are_rejected(save, change):
    path = save("a", np.zeros((2, 2), np.float32))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size + change)
    with pytest.raises(click.UsageError) as caught:
        files.open_array(str(path))
    assert caught.value.message == (
        f"{path}: has {16 + change} bytes of elements (float32 [2, 2] takes 16 bytes)"
    )


def test_directories_and_full_disks_are_errors(tmp_path):
    with pytest.raises(click.UsageError, match="cannot be read"):
        files.open_array(str(tmp_path))
    with pytest.raises(errors.Failure, match="/dev/full: cannot be written .No space left"):
        files.write_array("/dev/full", np.zeros(1 << 20))
    with pytest.raises(errors.Failure, match="No such file or directory"):
        files.write_array(str(tmp_path / "none" / "a.npy"), np.zeros(1))


def test_named_files_are_cut_at_the_first_equals_sign():
    assert files.named_files("--input", ["x=a=b.npy", "y=c"]) == {"x": "a=b.npy", "y": "c"}


def test_dataset_gathers_rows_in_the_order_asked(save):
    x = save("x", np.array([[0, 1], [10, 11], [20, 21]], np.int32))
    y = save("y", np.array([100, 101, 102]))
    data = files.Dataset({"x": str(x)}, {"target": str(y)})
    assert data.rows == 3
    inputs, targets = data.gather(np.array([2, 0]))
    np.testing.assert_array_equal(inputs["x"], [[20, 21], [0, 1]])
    np.testing.assert_array_equal(targets["target"], [102, 100])
    assert inputs["x"].dtype == np.int32


@pytest.mark.parametrize("array, message", [
    (np.zeros(2), "has 2 rows (other files have 3)"),
    (np.zeros(0), "has shape [0] (expected at least 1 row)"),
    (np.array(1), "has shape [] (expected at least 1 row)"),
])
def test_rows_of_a_dataset_agree_and_exist(save, array, message):
    x, y = save("x", np.zeros(3)), save("y", array)
    with pytest.raises(click.UsageError) as caught:
        files.Dataset({"x": str(x)}, {"y": str(y)})
    assert caught.value.message == f"{y}: {message}"


def test_epochs_without_shuffle_have_the_order_of_the_file():
    assert files.epoch_order(4, False, 9, 1).tolist() == [0, 1, 2, 3]


def test_orders_are_permutations_that_depend_on_seed_and_epoch_alone():
    orders = [
        files.epoch_order(100, True, seed, epoch).tolist()
        for seed in (0, 1, 1 << 32, (1 << 64) - 1) for epoch in (0, 1)
    ]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len(set(map(tuple, orders))) == len(orders)
    first, second = (files.epoch_order(100, True, 1, 2).tolist() for _ in range(2))
    assert first == second


def test_orders_are_the_same_in_every_version():
    """Training with --attach continues in the order in which it began."""
    assert files.epoch_order(8, True, 7, 3).tolist() == [7, 6, 4, 0, 2, 3, 5, 1]


def test_inputs_are_arrays_and_rows_of_bytes(save, tmp_path):
    array = save("x", np.zeros((2, 3)))
    for name in ("cat", "dog"):
        (tmp_path / name).write_bytes(name.encode() + b"\0")
    inputs = files.open_inputs(
        "--input", [f"image=@{tmp_path}/dog", f"x={array}", f"image=@{tmp_path}/cat"]
    )
    assert inputs["x"].shape == (2, 3)
    assert inputs["image"].tolist() == [b"dog\0", b"cat\0"]


@pytest.mark.parametrize(("argument", "reason"), [
    ("x=@missing", "cannot be read"),
    ("=@file", "invalid value"),
    ("x=@", "cannot be read"),
    ("x=@{array}", "has an array and other files"),
])
def test_invalid_inputs_are_rejected(save, argument, reason):
    array = save("x", np.zeros((2, 3)))
    arguments = [argument.format(array=array), *([f"x={array}"] if "array" in argument else [])]
    with pytest.raises(click.UsageError, match=reason):
        files.open_inputs("--input", arguments)
