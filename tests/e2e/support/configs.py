"""The config.pbtxt files of models under test."""

MLP = """
name: "mlp"
backend: "pytorch"
max_batch_size: 64
input [ { name: "x" data_type: TYPE_FP32 dims: [ 784 ] } ]
output [ { name: "logits" data_type: TYPE_FP32 dims: [ 10 ] } ]
"""

# The names give the positions of the argument and the output.
SENTENCES = """
name: "sentences"
platform: "pytorch_libtorch"
max_batch_size: 64
input [ { name: "INPUT__0" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1, 5 ] } ]
"""

# Batches wait for more requests, so concurrent requests are merged.
WAITING_WORDS = """
max_batch_size: 1024
dynamic_batching { max_queue_delay_microseconds: 300000 }
input [ { name: "words" data_type: TYPE_INT64 } ]
output [ { name: "vectors" data_type: TYPE_FP32 dims: [ 5 ] } ]
"""

SLOW = """
max_batch_size: 1
input [ { name: "x" data_type: TYPE_FP32 dims: [ 256 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 256 ] } ]
"""


def identity(datatype: str) -> str:
    """Config for a model that returns its input: "x" → "y", [B, n] of `datatype`."""
    return f"""
name: "identity_{datatype.lower()}"
backend: "pytorch"
max_batch_size: 64
input [ {{ name: "x" data_type: TYPE_{datatype} dims: [ -1 ] }} ]
output [ {{ name: "y" data_type: TYPE_{datatype} dims: [ -1 ] }} ]
"""
