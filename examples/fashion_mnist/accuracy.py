#!/usr/bin/env python3
"""Computes the accuracy of scores.parquet, the output of the job score.yaml.

usage: accuracy.py SCORES MIN_ACCURACY

Exits with status 1 if the accuracy is below MIN_ACCURACY (for example 0.88), or if SCORES does not
have each image once, in order.
"""

import sys

import numpy as np
import pyarrow.parquet as pq


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    scores, min_accuracy = pq.read_table(sys.argv[1]), float(sys.argv[2])
    if scores["id"].to_pylist() != list(range(len(scores))):
        sys.exit(f"error: {sys.argv[1]} does not have each image once, in order")
    logits = scores["logits"].combine_chunks().flatten().to_numpy().reshape(len(scores), -1)
    accuracy = float((logits.argmax(axis=1) == np.asarray(scores["label"])).mean())
    print(f"accuracy    {accuracy:.2%} of {len(scores)} test images")
    if accuracy < min_accuracy:
        sys.exit(f"error: accuracy {accuracy:.2%} is below {min_accuracy:.2%}")


if __name__ == "__main__":
    main()
