// Converts between tensors in host memory, as requests have them, and LibTorch tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "server/base/data_type.h"
#include "server/base/host_tensor.h"

namespace braid {

c10::ScalarType ToScalarType(DataType type);
// Returns false for a type that the protocol does not support.
bool FromScalarType(c10::ScalarType scalar, DataType* type);

// Returns a view of rows [start, start + rows) of `host`, or of all of it if it is broadcast. The
// view does not keep the memory alive.
at::Tensor ViewRows(const HostTensor& host, int64_t start, int64_t rows);
// Returns a view of all of `host`, which may be 0-dim. Does not keep the memory alive.
at::Tensor View(const HostTensor& host);

// Resolves a pending negation or conjugation, or zeros without memory. Required before anything but
// LibTorch's operators reads the memory. Returns `tensor` itself if nothing is pending.
at::Tensor Materialize(const at::Tensor& tensor);

// Returns `tensor` as a contiguous HostTensor that owns its memory. Copies only if the tensor is on
// another device or not contiguous. Synchronize the device before reading the bytes.
HostTensor ToHost(const at::Tensor& tensor, std::string name);

}  // namespace braid
