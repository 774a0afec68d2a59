// Tensors of a self-test: inputs, and samples of expected outputs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "server/base/data_type.h"
#include "server/base/json_fields.h"
#include "server/models/archive/package_interface.h"

namespace braid {

// Returns element `index` of the splitmix64 sequence with `seed`, in [0, 1). Platform-independent.
double SelfTestNumber(uint64_t seed, uint64_t index);

// Tensor that a self-test gives to a graph. Immutable.
class GivenTensor {
 public:
  // field: {"dtype", "shape"} and "data", or "generated". FAILED_PRECONDITION if damaged or
  // incompatible with `input`.
  static absl::StatusOr<GivenTensor> Read(const JsonField& field, const PackageInput& input);

  const std::vector<int64_t>& shape() const { return shape_; }
  // Creates the tensor in host memory. Throws what LibTorch throws.
  at::Tensor Make() const;

 private:
  // Uniform in [mean - scale, mean + scale], clamped to [min, max]; integers: uniform in
  // [least, most].
  struct Generated {
    uint64_t seed = 0;
    double mean = 0;
    double scale = 0;
    double min = 0;
    double max = 0;
    int64_t least = 0;
    int64_t most = 0;
  };

  absl::Status ReadGenerated(const JsonField& field, const PackageInput& input);
  absl::Status ReadData(const JsonField& field, const PackageInput& input);

  DataType type_ = DataType::kFp32;
  std::vector<int64_t> shape_;
  std::string data_;  // empty if generated
  std::optional<Generated> generated_;
};

// Evenly spread elements of a tensor that a graph must return. Immutable.
class ExpectedSample {
 public:
  // field: {"dtype", "shape", "stride", "data", "tolerance"}. FAILED_PRECONDITION if it is damaged.
  static absl::StatusOr<ExpectedSample> Read(const JsonField& field);

  // Says how `tensor` differs, as in "differs by up to 0.3 (tolerance 0.001)"; nullopt if it is as
  // expected. NaN equals NaN; infinities must match. Throws what LibTorch throws.
  std::optional<std::string> Difference(const at::Tensor& tensor) const;

 private:
  DataType type_ = DataType::kFp32;
  std::vector<int64_t> shape_;
  int64_t stride_ = 1;
  std::vector<double> elements_;
  double tolerance_ = 0;
};

}  // namespace braid
