#!/usr/bin/env python3
"""Writes Fashion-MNIST as the .npy files that `braid train` reads, and as Parquet for jobs.

usage: dataset.py OUTPUT [SOURCE]

SOURCE is a directory with the four .gz files of the data set. Default: the directory of Debian's and
Ubuntu's package dataset-fashion-mnist. Writes to OUTPUT: train_images.npy and test_images.npy, uint8
[N, 1, 28, 28], train_labels.npy and test_labels.npy, int64 [N] in [0, 10), and train.parquet and
test.parquet with the columns id, image and label.
"""

import gzip
import pathlib
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PACKAGED = pathlib.Path("/usr/share/datasets/fashion-mnist")
MISSING = """error: Fashion-MNIST: {path} does not exist.
On Debian and Ubuntu: sudo apt-get install dataset-fashion-mnist
Elsewhere: put the four .gz files of https://github.com/zalandoresearch/fashion-mnist
in a directory and run: FASHION_MNIST=DIRECTORY scripts/demo.sh"""


def read_idx(path, dimensions):
    """Reads an IDX file (magic number, big-endian sizes, bytes) as a uint8 array."""
    try:
        data = gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        sys.exit(MISSING.format(path=path))
    magic, *shape = np.frombuffer(data, ">u4", 1 + dimensions).tolist()
    if magic != 0x800 + dimensions:
        sys.exit(f"error: {path}: not an IDX file of {dimensions} dimensions")
    return np.frombuffer(data, np.uint8, offset=4 * (1 + dimensions)).reshape(shape)


def tensor_column(array):
    """Returns the rows of an array as a column of tensors."""
    kind = pa.fixed_shape_tensor(pa.from_numpy_dtype(array.dtype), array.shape[1:])
    rows = pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array[0].size)
    return pa.ExtensionArray.from_storage(kind, rows)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    output = pathlib.Path(sys.argv[1])
    source = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else PACKAGED
    for part, prefix in (("train", "train"), ("test", "t10k")):
        images = read_idx(source / f"{prefix}-images-idx3-ubyte.gz", 3)
        labels = read_idx(source / f"{prefix}-labels-idx1-ubyte.gz", 1)
        images, labels = images.reshape(-1, 1, 28, 28), labels.astype(np.int64)
        np.save(output / f"{part}_images.npy", images)
        np.save(output / f"{part}_labels.npy", labels)
        columns = {
            "id": np.arange(len(labels)),
            "image": tensor_column(images),
            "label": labels,
        }
        pq.write_table(pa.table(columns), output / f"{part}.parquet", row_group_size=10_000)
        print(f"{part}: {len(images)} images of {images.shape[2]} × {images.shape[3]}")


if __name__ == "__main__":
    main()
