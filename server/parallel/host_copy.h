// Between host memory as the wire has it and tensors on a device.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "server/base/data_type.h"
#include "server/base/host_tensor.h"

namespace braid {

c10::ScalarType ToScalarType(DataType type);
// False for a type that the wire has no name for.
bool FromScalarType(c10::ScalarType scalar, DataType* type);

// A view of `host`'s bytes, which it does not keep alive, of rows [start, start + rows); all of it
// if it is broadcast.
at::Tensor ViewRows(const HostTensor& host, int64_t start, int64_t rows);
// A view of all of it; also for a 0-dim tensor.
at::Tensor View(const HostTensor& host);

// Writes out what LibTorch has only marked on `tensor`: a negation, a conjugation, or zeros without
// memory. Required before its memory is read other than by LibTorch's operators. Returns `tensor`
// itself if nothing is pending.
at::Tensor Materialize(const at::Tensor& tensor);

// The tensor's bytes in host memory, kept alive by it; copies only what is not there yet,
// contiguous. The caller synchronizes the device before it reads them.
HostTensor ToHost(const at::Tensor& tensor, std::string name);

}  // namespace braid
