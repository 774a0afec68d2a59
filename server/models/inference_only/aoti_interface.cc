#include "server/models/inference_only/aoti_interface.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "re2/re2.h"
#include "server/base/host_tensor.h"
#include "server/base/json_fields.h"
#include "server/base/status.h"

namespace braid {
namespace {

using nlohmann::json;

// Match of a pattern: the input's index and two more captures.
struct Found {
  size_t input = 0;
  std::string first;
  std::string second;
};
std::vector<Found> FindAll(absl::string_view source, const std::string& pattern) {
  const re2::RE2 expression(R"(input_handles\[(\d+)\]: )" + pattern);
  re2::StringPiece text(source.data(), source.size());
  std::vector<Found> all;
  Found found;
  while (RE2::FindAndConsume(&text, expression, &found.input, &found.first, &found.second)) {
    all.push_back(found);
  }
  return all;
}

std::optional<DataType> TypeOf(const std::string& name) {
  static const auto* const kTypes = new std::map<std::string, DataType>{
      {"Bool", DataType::kBool},     {"Byte", DataType::kUint8},    {"UInt16", DataType::kUint16},
      {"UInt32", DataType::kUint32}, {"UInt64", DataType::kUint64}, {"Char", DataType::kInt8},
      {"Short", DataType::kInt16},   {"Int", DataType::kInt32},     {"Long", DataType::kInt64},
      {"Half", DataType::kFp16},     {"BFloat16", DataType::kBf16}, {"Float", DataType::kFp32},
      {"Double", DataType::kFp64}};
  const auto found = kTypes->find(name);
  return found == kTypes->end() ? std::nullopt : std::optional(found->second);
}

int64_t Number(const std::string& text) {
  int64_t number = 0;
  return absl::SimpleAtoi(text, &number) ? number : std::numeric_limits<int64_t>::max();
}

// Checked sizes or strides, by index of the input and dimension.
using Sizes = std::map<std::pair<size_t, size_t>, int64_t>;
Sizes FindSizes(absl::string_view source, const std::string& what, const std::string& expected) {
  Sizes sizes;
  for (const Found& found :
       FindAll(source, absl::StrCat(what, R"( at (\d+), "\s*<< ")", expected, R"((\d+))"))) {
    sizes[{found.input, static_cast<size_t>(Number(found.first))}] = Number(found.second);
  }
  return sizes;
}

std::optional<int64_t> At(const Sizes& sizes, size_t input, size_t dim) {
  const auto found = sizes.find({input, dim});
  return found == sizes.end() ? std::nullopt : std::optional(found->second);
}

// Requests are row-major contiguous. Checks strides as far as the sizes are known.
absl::Status CheckStrides(size_t index, const PackageInput& input, const Sizes& strides) {
  int64_t expected = 1;
  for (size_t d = input.dims.size(); d-- > 0;) {
    if (const auto stride = At(strides, index, d); stride && *stride != expected) {
      return absl::FailedPreconditionError(
          absl::StrCat("model.pt2 was compiled for a non-contiguous input '", input.name,
                       "' (export it with a contiguous example)"));
    }
    if (!input.dims[d].fixed()) {
      return absl::OkStatus();
    }
    expected *= std::max<int64_t>(input.dims[d].min, 1);
  }
  return absl::OkStatus();
}

// Sets the symbols of dynamic dims. The source assigns each symbol once, from the first dim with
// it. The same dim of another input, if it has no symbol, is assumed to have the same size.
void AddSymbols(absl::string_view source, std::vector<PackageInput>* inputs) {
  static const re2::RE2 kInput(R"(auto (\w+) = std::move\(inputs\[(\d+)\]\);)");
  static const re2::RE2 kSymbol(R"(int64_t (s\d+) = (\w+)_size\[(\d+)\];)");
  std::map<std::string, size_t> indices;
  re2::StringPiece text(source.data(), source.size());
  std::string name;
  size_t index = 0;
  while (RE2::FindAndConsume(&text, kInput, &name, &index)) {
    indices[name] = index;
  }
  text = re2::StringPiece(source.data(), source.size());
  std::string symbol;
  size_t dim = 0;
  std::map<size_t, std::string> first;
  while (RE2::FindAndConsume(&text, kSymbol, &symbol, &name, &dim)) {
    const auto input = indices.find(name);
    if (input != indices.end() && input->second < inputs->size() &&
        dim < (*inputs)[input->second].dims.size()) {
      (*inputs)[input->second].dims[dim].symbol = symbol;
      first.emplace(dim, symbol);
    }
  }
  for (PackageInput& input : *inputs) {
    for (size_t d = 0; d < input.dims.size(); ++d) {
      if (!input.dims[d].fixed() && input.dims[d].symbol.empty() && first.count(d) > 0) {
        input.dims[d].symbol = first[d];
      }
    }
  }
}

absl::StatusOr<std::vector<PackageInput>> ParseInputs(absl::string_view source) {
  std::vector<PackageInput> inputs;
  for (const Found& found :
       FindAll(source, R"re(unmatched dtype, "\s*<< "expected: " << (\w+) << "\(at::k(\w+)\))re")) {
    const std::optional<DataType> type = TypeOf(found.second);
    if (!type || found.input != inputs.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat("model.pt2 takes an input of the unsupported datatype ", found.second));
    }
    inputs.push_back({absl::StrCat("input__", inputs.size()), *type, {}});
  }
  const Sizes fixed = FindSizes(source, "unmatched dim value", "expected: ");
  const Sizes min = FindSizes(source, "dim value is too small", "expected it to be >= ");
  const Sizes max = FindSizes(source, "dim value is too large", "expected to be <= ");
  const Sizes strides = FindSizes(source, "unmatched stride value", "expected: ");
  for (const Sizes* sizes : {&fixed, &min, &max, &strides}) {
    for (const auto& [place, size] : *sizes) {
      if (place.first >= inputs.size() || place.second > 64) {
        return absl::FailedPreconditionError(
            "model.pt2: the input checks in wrapper.cpp are inconsistent (compile it again)");
      }
      auto& dims = inputs[place.first].dims;
      dims.resize(std::max(dims.size(), place.second + 1));
    }
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (size_t d = 0; d < inputs[i].dims.size(); ++d) {
      const std::optional<int64_t> size = At(fixed, i, d);
      PackageDim& dim = inputs[i].dims[d];
      dim.min = size.value_or(At(min, i, d).value_or(dim.min));
      dim.max = size.value_or(At(max, i, d).value_or(dim.max));
    }
    BRAID_RETURN_IF_ERROR(CheckStrides(i, inputs[i], strides));
  }
  const std::string device =
      R"re(unmatched device type, "\s*<< "expected: " << (\w+) << "\d+\((\w+)\))re";
  for (const Found& found : FindAll(source, device)) {
    if (found.input < inputs.size()) {
      inputs[found.input].on_cpu = found.second == "cpu";
    }
  }
  AddSymbols(source, &inputs);
  return inputs;
}

// Returns the tree that is assigned to `name`, as in `in_spec_ = R"([1, {…}])"`.
json TreeOf(absl::string_view source, const std::string& name) {
  std::string text;
  if (!RE2::PartialMatch(re2::StringPiece(source.data(), source.size()),
                         name + R"re( = R"\((.*)\)";)re", &text)) {
    return json();
  }
  return ParseTree(text);
}

}  // namespace

absl::StatusOr<PackageInterface> ParseAotiInterface(absl::string_view source) {
  PackageInterface interface;
  BRAID_ASSIGN_OR_RETURN(interface.inputs, ParseInputs(source));
  if (interface.inputs.empty()) {
    return absl::FailedPreconditionError(
        "model.pt2 does not describe its inputs (compile it with "
        "torch._inductor.aoti_compile_and_package of this server's PyTorch release)");
  }
  const std::vector<std::string> names = InputNames(TreeOf(source, "in_spec_"), {});
  for (size_t i = 0; names.size() == interface.inputs.size() && i < names.size(); ++i) {
    interface.inputs[i].name = names[i];
  }
  interface.output_paths = OutputPaths(TreeOf(source, "out_spec_"));
  return interface;
}

absl::Status ReadAotiMetadataRanges(absl::string_view metadata, std::vector<PackageInput>* inputs) {
  constexpr char kEntry[] = "BRAID_RANGES";
  const json entries = json::parse(metadata, nullptr, /*allow_exceptions=*/false);
  if (!entries.is_object() || !entries.contains(kEntry)) {
    return absl::OkStatus();
  }
  BRAID_ASSIGN_OR_RETURN(const std::string text, JsonField(entries[kEntry], kEntry).String());
  const json ranges = json::parse(text, nullptr, /*allow_exceptions=*/false);
  for (PackageInput& input : *inputs) {
    const JsonField fields(ranges, kEntry);
    if (!fields.Has(input.name.c_str())) {
      continue;
    }
    BRAID_ASSIGN_OR_RETURN(const JsonField field, fields.Get(input.name.c_str()));
    BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> ends, field.Items());
    if (ends.size() != 2) {
      return field.Error(
          absl::StrCat(ends.size(), " elements (expected minimum and maximum index)"));
    }
    ValueRange& range = input.range.emplace();
    BRAID_ASSIGN_OR_RETURN(range.min, ends[0].Integer());
    BRAID_ASSIGN_OR_RETURN(range.max, ends[1].Integer());
  }
  return absl::OkStatus();
}

absl::Status CheckNoMutatedConstants(absl::string_view source) {
  static const re2::RE2 kConstant(R"(auto& (\w+) = constants_->at\()");
  // Non-const pointers, and destinations of copies.
  static const re2::RE2 kWritten(R"((?:\([\w:]+\*\)\(|aoti_torch_copy_\()(\w+)(?:\.data_ptr|,))");
  std::set<std::string> constants;
  std::string name;
  for (re2::StringPiece text(source.data(), source.size());
       RE2::FindAndConsume(&text, kConstant, &name);) {
    constants.insert(name);
  }
  for (re2::StringPiece text(source.data(), source.size());
       RE2::FindAndConsume(&text, kWritten, &name);) {
    if (constants.contains(name)) {
      return absl::FailedPreconditionError(
          absl::StrCat("model.pt2 changes its buffer '", name,
                       "' (compile it in evaluation mode: call eval() "
                       "before torch.export.export)"));
    }
  }
  return absl::OkStatus();
}

std::set<std::string> TrainingKernels(absl::string_view sources) {
  static const re2::RE2 kDropout(R"((?:cpp|triton_\w+)_fused_\w*dropout\w*\()");
  const bool found = RE2::PartialMatch(re2::StringPiece(sources.data(), sources.size()), kDropout);
  return found ? std::set<std::string>{"dropout"} : std::set<std::string>();
}

absl::Status CheckNoParallelIndexChecks(absl::string_view source) {
  for (const absl::string_view kernel : absl::StrSplit(source, "extern \"C\"")) {
    if (absl::StrContains(kernel, "#pragma omp parallel") &&
        absl::StrContains(kernel, "AOTI_TORCH_CHECK(")) {
      return absl::FailedPreconditionError(
          "model.pt2 checks indices in parallel regions, where an index out of range would end the "
          "server (compile it with torch._inductor.config.cpp.threads = 1 and without "
          "dynamic_threads, as braid.export does)");
    }
  }
  return absl::OkStatus();
}

}  // namespace braid
