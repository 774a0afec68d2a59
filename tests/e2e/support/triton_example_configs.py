"""config.pbtxt files with the settings, names and notations of Triton's documentation, tutorials
and tests for TorchScript models."""

# Not batched, although the module takes a batch: the configuration has the batch dimension.
RESNET50 = """
name: "resnet50"
platform: "pytorch_libtorch"
max_batch_size : 0
input [
  {
    name: "input__0"
    data_type: TYPE_FP32
    dims: [ 3, 224, 224 ]
    reshape { shape: [ 1, 3, 224, 224 ] }
  }
]
output [
  {
    name: "output__0"
    data_type: TYPE_FP32
    dims: [ 1, 1000, 1, 1 ]
    reshape { shape: [ 1, 1000 ] }
  }
]
"""

DENSENET = """
name: "densenet"
platform: "pytorch_libtorch"
max_batch_size : 0
input [ {
  name: "data_0"
  data_type: TYPE_FP32
  format: FORMAT_NCHW
  dims: [ 3, 224, 224 ]
  reshape { shape: [ 1, 3, 224, 224 ] }
} ]
output [ {
  name: "fc6_1"
  data_type: TYPE_FP32
  dims: [ 10 ]
  reshape { shape: [ 1, 10, 1, 1 ] }
  label_filename: "labels.txt"
} ]
"""

# The names contain signs that no argument name can have, so the order decides.
INCEPTION = """
name: "inception"
backend: "pytorch"
max_batch_size: 0
input [ {
  name: "input:0"
  data_type: TYPE_FP32
  format: FORMAT_NHWC
  dims: [ 299, 299, 3 ]
  reshape { shape: [ 1, 299, 299, 3 ] }
} ]
output [ {
  name: "Inception/Predictions/Softmax:0"
  data_type: TYPE_FP32
  dims: [ 11 ]
  reshape { shape: [ 1, 11 ] }
  label_filename: "labels.txt"
} ]
"""

SIMPLE = """
name: "simple"
platform: "pytorch_libtorch"
max_batch_size: 8
input [
  { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
  { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 16 ] }
]
"""

SIMPLE_INT8 = """
max_batch_size: 8
input [
  { name: "INPUT1" data_type: TYPE_INT8 dims: [ 16 ] },
  { name: "INPUT0" data_type: TYPE_INT8 dims: [ 16 ] }
]
output [
  { name: "OUTPUT__1" data_type: TYPE_INT8 dims: [ 16 ] },
  { name: "OUTPUT__0" data_type: TYPE_INT8 dims: [ 16 ] }
]
"""

# A complete configuration of a model on the CPU.
CPU_INSTANCE = """
name: "cpu_instance"
platform: "pytorch_libtorch"
version_policy { latest { num_versions: 1 } }
max_batch_size: 8
input { name: "INPUT__0" data_type: TYPE_INT32 dims: 16 }
input { name: "INPUT__1" data_type: TYPE_INT32 dims: 16 }
output { name: "OUTPUT__0" data_type: TYPE_INT32 dims: 16 }
output { name: "OUTPUT__1" data_type: TYPE_INT32 dims: 16 }
instance_group { name: "cpu_instance" count: 1 kind: KIND_CPU }
default_model_filename: "model.pt"
optimization {
  input_pinned_memory { enable: true }
  output_pinned_memory { enable: true }
}
backend: "pytorch"
"""

LABELLED = """
backend: "pytorch"
name: "labelled"
platform: "pytorch_libtorch"
max_batch_size: 8
version_policy: { specific { versions: [1,3] }}
input [
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
output [
  { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 10 ] label_filename: "labels.txt" },
  { name: "OUTPUT__1" data_type: TYPE_FP32 dims: [ 10 ] }
]
"""

NEWEST = """
platform: "pytorch_libtorch"
max_batch_size: 8
version_policy: { latest: { num_versions: 2}}
input [
  { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "INPUT__1" data_type: TYPE_FP32 dims: [ 16 ] }
]
output [
  { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 10 ] },
  { name: "OUTPUT__1" data_type: TYPE_FP32 dims: [ 10 ] }
]
"""

# Lists of one tensor each, in order.
ANY_SIZE = """
name: "any_size"
platform: "pytorch_libtorch"
max_batch_size: 0
version_policy: { all { }}
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 4, -1 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 4, -1 ] } ]
input [ { name: "INPUT__1" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT__1" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""

RESHAPED = """
name: "reshaped"
platform: "pytorch_libtorch"
max_batch_size: 8
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 4, 4 ] reshape: { shape: [ 16 ] } } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 4, 4 ] reshape: { shape: [ 16 ] } } ]
input [ { name: "INPUT__1" data_type: TYPE_FP32 dims: [ 2, -1 ] reshape: { shape: [ 1, 2, -1 ] } } ]
output [ {
  name: "OUTPUT__1" data_type: TYPE_FP32 dims: [ 2, -1, 1 ] reshape: { shape: [ 1, 2, -1 ] }
} ]
"""

NO_DIMS = """
name: "no_dims"
backend: "pytorch"
max_batch_size: 8
input [ { name: "in" data_type: TYPE_FP32 dims: [ 1 ] reshape: { shape: [ ] } } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 1 ] reshape: { shape: [ ] } } ]
"""

DICTIONARY = """
name: "dictionary"
platform: "pytorch_libtorch"
max_batch_size: 16
input [
  { name: "B" data_type: TYPE_FP32 dims: [ 3 ] },
  { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }
]
output [
  { name: "best" data_type: TYPE_INT64 dims: [ 1 ] },
  { name: "scores" data_type: TYPE_FP32 dims: [ 3 ] }
]
dynamic_batching { preferred_batch_size: [ 4, 8 ] }
"""

BERT = """
name: "bert"
platform: "pytorch_libtorch"
default_model_filename: "traced-model.pt"
max_batch_size: 16
input [
  { name: "input__0" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "input__1" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [
  { name: "output__0" data_type: TYPE_FP32 dims: [ -1, 16 ] },
  { name: "output__1" data_type: TYPE_FP32 dims: [ 16 ] }
]
dynamic_batching {
  preferred_batch_size: [ 1, 2, 4, 8, 16 ]
  max_queue_delay_microseconds: 30000
}
instance_group [ { count: 2 kind: KIND_CPU } ]
parameters: { key: "INFERENCE_MODE" value: { string_value: "true" } }
parameters: { key: "DISABLE_OPTIMIZED_EXECUTION" value: { string_value: "false" } }
model_warmup [ {
  name: "warmup_input"
  batch_size: 1
  inputs: {
    key: "input__0"
    value: { data_type: TYPE_INT64 dims: 128 zero_data: true }
  }
  inputs: {
    key: "input__1"
    value: { data_type: TYPE_INT64 dims: 128 random_data: true }
  }
} ]
"""

SENTIMENT = """
backend: "pytorch"
max_batch_size: 64
input [
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [ { name: "logits" data_type: TYPE_FP32 dims: [ 2 ] } ]
dynamic_batching {
  priority_levels: 2
  default_priority_level: 2
  default_queue_policy {
    timeout_action: REJECT
    default_timeout_microseconds: 60000000
    allow_timeout_override: true
    max_queue_size: 100
  }
  priority_queue_policy { key: 1 value: { timeout_action: DELAY max_queue_size: 10 } }
}
instance_group [ { count: 2 } ]
parameters: { key: "ENABLE_CACHE_CLEANING" value: { string_value: "false" } }
parameters: { key: "ENABLE_WEIGHT_SHARING" value: { string_value: "false" } }
parameters: { key: "DISABLE_CUDNN" value: { string_value: "false" } }
parameters: { key: "INFERENCE_MODE" value: { string_value: "false" } }
"""

TEXT_RECOGNITION = """
name: "text_recognition"
backend: "pytorch"
max_batch_size : 8
input [
  {
    name: "input.1"
    data_type: TYPE_FP32
    dims: [ 1, 32, 100 ]
  }
]
output [
  {
    name: "308"
    data_type: TYPE_FP32
    dims: [ 26, 37 ]
  }
]
dynamic_batching { max_queue_delay_microseconds: 100 }
instance_group [ { count: 1 kind: KIND_CPU }, { count: 1 kind: KIND_CPU } ]
model_warmup {
  name: "zero sample"
  batch_size: 8
  count: 2
  inputs { key: "input.1" value: { data_type: TYPE_FP32 dims: [ 1, 32, 100 ] zero_data: true } }
}
"""
