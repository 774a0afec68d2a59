#include "server/models/archive/self_test_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "ATen/Parallel.h"
#include "ATen/ops/empty.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/base/host_tensor.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

// Limits tensors with dynamic sizes. A self-test has few rows.
constexpr int64_t kMaxOpenElements = int64_t{1} << 26;
// Number of elements that are generated at once and then converted to the tensor's type.
constexpr int64_t kChunk = int64_t{1} << 20;
constexpr int64_t kGrain = int64_t{1} << 15;

struct TypeAndShape {
  DataType type = DataType::kFp32;
  std::vector<int64_t> shape;
};

absl::StatusOr<TypeAndShape> ReadTypeAndShape(const JsonField& field) {
  TypeAndShape read;
  BRAID_ASSIGN_OR_RETURN(const JsonField dtype, field.Get("dtype"));
  BRAID_ASSIGN_OR_RETURN(const std::string name, dtype.String());
  const std::optional<DataType> type = DataTypeFromName(name);
  if (!type) {
    return dtype.Error(
        absl::StrCat("unknown datatype '", Excerpt(name), "' (one of ", AllDataTypeNames(), ")"));
  }
  read.type = *type;
  BRAID_ASSIGN_OR_RETURN(const JsonField shape, field.Get("shape"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> sizes, shape.Items());
  for (const JsonField& size : sizes) {
    BRAID_ASSIGN_OR_RETURN(read.shape.emplace_back(), size.Integer());
  }
  if (!BytesOf(read.type, read.shape)) {
    return shape.Error(absl::StrCat("invalid shape ", ShapeString(read.shape)));
  }
  return read;
}

int64_t Count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    count *= size;
  }
  return count;
}

bool Takes(const PackageInput& input, const TypeAndShape& tensor) {
  bool fits = tensor.type == input.type && tensor.shape.size() == input.dims.size();
  bool open = false;
  for (size_t d = 0; fits && d < tensor.shape.size(); ++d) {
    const PackageDim& dim = input.dims[d];
    fits = tensor.shape[d] >= dim.min && tensor.shape[d] <= dim.max;
    open = open || !dim.fixed();
  }
  return fits && (!open || Count(tensor.shape) <= kMaxOpenElements);
}

absl::StatusOr<std::string> ReadBase64(const JsonField& field) {
  BRAID_ASSIGN_OR_RETURN(const std::string text, field.String());
  std::string bytes;
  if (!absl::Base64Unescape(text, &bytes)) {
    return field.Error("invalid base64");
  }
  return bytes;
}

absl::Status ReadNumber(const JsonField& object, const char* name, double* number) {
  BRAID_ASSIGN_OR_RETURN(const JsonField field, object.Get(name));
  BRAID_ASSIGN_OR_RETURN(*number, field.Number());
  return std::isfinite(*number) ? absl::OkStatus() : field.Error("expected a finite number");
}

absl::Status ReadInteger(const JsonField& object, const char* name, int64_t* number) {
  BRAID_ASSIGN_OR_RETURN(const JsonField field, object.Get(name));
  BRAID_ASSIGN_OR_RETURN(*number, field.Integer());
  return absl::OkStatus();
}

absl::Status CheckRange(const JsonField& field, const PackageInput& input, int64_t least,
                        int64_t most) {
  if (!input.range || (least >= input.range->min && most <= input.range->max)) {
    return absl::OkStatus();
  }
  return field.Error(absl::StrCat("values from ", least, " to ", most, " (expected ",
                                  input.range->min, " to ", input.range->max, ")"));
}

// Fills `flat` with value(0), value(1), …
template <typename T, typename Value>
void Fill(const at::Tensor& flat, const Value& value) {
  const int64_t count = flat.numel();
  const at::Tensor chunk = at::empty({std::min(count, kChunk)}, c10::CppTypeToScalarType<T>::value);
  T* const values = chunk.mutable_data_ptr<T>();
  for (int64_t start = 0; start < count; start += kChunk) {
    const int64_t length = std::min(kChunk, count - start);
    at::parallel_for(0, length, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        values[i] = value(static_cast<uint64_t>(start + i));
      }
    });
    flat.narrow(0, start, length).copy_(chunk.narrow(0, 0, length));
  }
}

double DifferenceOf(double expected, double actual) {
  if (expected == actual || (std::isnan(expected) && std::isnan(actual))) {
    return 0;
  }
  const double difference = std::abs(expected - actual);
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

}  // namespace

double SelfTestNumber(uint64_t seed, uint64_t index) {
  uint64_t z = (seed << 32) + index + 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  z ^= z >> 31;
  return std::ldexp(static_cast<double>(z >> 11), -53);
}

absl::StatusOr<GivenTensor> GivenTensor::Read(const JsonField& field, const PackageInput& input) {
  BRAID_ASSIGN_OR_RETURN(TypeAndShape read, ReadTypeAndShape(field));
  if (!Takes(input, read)) {
    return field.Error(absl::StrCat(DataTypeName(read.type), ShapeString(read.shape), " (expected ",
                                    DescribePackageInput(input), ")"));
  }
  GivenTensor given;
  given.type_ = read.type;
  given.shape_ = std::move(read.shape);
  if (field.Has("generated")) {
    BRAID_ASSIGN_OR_RETURN(const JsonField generated, field.Get("generated"));
    BRAID_RETURN_IF_ERROR(given.ReadGenerated(generated, input));
  } else {
    BRAID_ASSIGN_OR_RETURN(const JsonField data, field.Get("data"));
    BRAID_RETURN_IF_ERROR(given.ReadData(data, input));
  }
  return given;
}

absl::Status GivenTensor::ReadGenerated(const JsonField& field, const PackageInput& input) {
  Generated generated;
  int64_t seed = 0;
  BRAID_RETURN_IF_ERROR(ReadInteger(field, "seed", &seed));
  generated.seed = static_cast<uint64_t>(seed);
  if (IsFloatingPoint(type_)) {
    BRAID_RETURN_IF_ERROR(ReadNumber(field, "mean", &generated.mean));
    BRAID_RETURN_IF_ERROR(ReadNumber(field, "scale", &generated.scale));
    BRAID_RETURN_IF_ERROR(ReadNumber(field, "min", &generated.min));
    BRAID_RETURN_IF_ERROR(ReadNumber(field, "max", &generated.max));
  } else if (type_ != DataType::kBool) {
    BRAID_RETURN_IF_ERROR(ReadInteger(field, "min", &generated.least));
    BRAID_RETURN_IF_ERROR(ReadInteger(field, "max", &generated.most));
    BRAID_RETURN_IF_ERROR(CheckRange(field, input, generated.least, generated.most));
  }
  if (generated.min > generated.max || generated.least > generated.most) {
    return field.Error("min exceeds max");
  }
  generated_ = generated;
  return absl::OkStatus();
}

absl::Status GivenTensor::ReadData(const JsonField& field, const PackageInput& input) {
  BRAID_ASSIGN_OR_RETURN(data_, ReadBase64(field));
  const size_t expected = *BytesOf(type_, shape_);
  if (data_.size() != expected) {
    return field.Error(absl::StrCat(data_.size(), " bytes (expected ", expected, " for ",
                                    DataTypeName(type_), ShapeString(shape_), ")"));
  }
  if (type_ == DataType::kBool && data_.find_first_not_of({"\0\1", 2}) != std::string::npos) {
    return field.Error("bytes other than 0 and 1 (BOOL)");
  }
  if (!input.range || data_.empty()) {
    return absl::OkStatus();
  }
  const at::Tensor values = Make().to(at::kLong);
  return CheckRange(field, input, values.min().item<int64_t>(), values.max().item<int64_t>());
}

at::Tensor GivenTensor::Make() const {
  at::Tensor tensor = at::empty(shape_, ToScalarType(type_));
  if (!generated_) {
    std::copy(data_.begin(), data_.end(), static_cast<char*>(tensor.mutable_data_ptr()));
    return tensor;
  }
  const Generated& g = *generated_;
  const at::Tensor flat = tensor.view({-1});
  if (type_ == DataType::kBool) {
    Fill<bool>(flat, [&](uint64_t i) { return SelfTestNumber(g.seed, i) < 0.5; });
  } else if (IsFloatingPoint(type_)) {
    Fill<double>(flat, [&](uint64_t i) {
      return std::clamp(g.mean + g.scale * (2 * SelfTestNumber(g.seed, i) - 1), g.min, g.max);
    });
  } else {
    const uint64_t span = static_cast<uint64_t>(g.most) - static_cast<uint64_t>(g.least);
    const double values = static_cast<double>(span) + 1;
    Fill<int64_t>(flat, [&](uint64_t i) {
      const auto offset = static_cast<uint64_t>(SelfTestNumber(g.seed, i) * values);
      return static_cast<int64_t>(static_cast<uint64_t>(g.least) + std::min(offset, span));
    });
  }
  return tensor;
}

absl::StatusOr<ExpectedSample> ExpectedSample::Read(const JsonField& field) {
  BRAID_ASSIGN_OR_RETURN(TypeAndShape read, ReadTypeAndShape(field));
  ExpectedSample sample;
  sample.type_ = read.type;
  sample.shape_ = std::move(read.shape);
  BRAID_RETURN_IF_ERROR(ReadInteger(field, "stride", &sample.stride_));
  BRAID_RETURN_IF_ERROR(ReadNumber(field, "tolerance", &sample.tolerance_));
  if (sample.stride_ < 1) {
    return field.Error(absl::StrCat("stride ", sample.stride_, " (expected at least 1)"));
  }
  if (!(sample.tolerance_ >= 0)) {
    return field.Error(absl::StrCat("tolerance ", sample.tolerance_, " (expected at least 0)"));
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField data, field.Get("data"));
  BRAID_ASSIGN_OR_RETURN(const std::string bytes, ReadBase64(data));
  const int64_t count = Count(sample.shape_);
  const auto elements =
      static_cast<size_t>(count / sample.stride_ + (count % sample.stride_ == 0 ? 0 : 1));
  if (bytes.size() % sizeof(double) != 0 || bytes.size() / sizeof(double) != elements) {
    return data.Error(
        absl::StrCat(bytes.size(), " bytes (expected ", elements * sizeof(double), ")"));
  }
  sample.elements_.resize(elements);
  std::memcpy(sample.elements_.data(), bytes.data(), bytes.size());
  return sample;
}

std::optional<std::string> ExpectedSample::Difference(const at::Tensor& tensor) const {
  if (tensor.scalar_type() != ToScalarType(type_) || tensor.sizes() != shape_) {
    return absl::StrCat("is ", c10::toString(tensor.scalar_type()),
                        ShapeString(tensor.sizes().vec()), " (expected ", DataTypeName(type_),
                        ShapeString(shape_), ")");
  }
  const at::Tensor actual = tensor.detach()
                                .reshape({-1})
                                .slice(/*dim=*/0, /*start=*/0, /*end=*/std::nullopt, stride_)
                                .to(c10::kCPU)
                                .to(at::kDouble)
                                .contiguous();
  const auto* const values = actual.const_data_ptr<double>();
  double largest = 0;
  for (size_t i = 0; i < elements_.size(); ++i) {
    largest = std::max(largest, DifferenceOf(elements_[i], values[i]));
  }
  if (largest <= tolerance_) {
    return std::nullopt;
  }
  return absl::StrCat("differs by up to ", largest, " (tolerance ", tolerance_, ")");
}

}  // namespace braid
