#include "server/data/npy_header.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

constexpr absl::string_view kMagic = "\x93NUMPY";
// NumPy's own limit.
constexpr size_t kMaxRank = 64;

constexpr std::array<std::pair<absl::string_view, DataType>, 12> kDescriptors = {{
    {"|b1", DataType::kBool},
    {"|u1", DataType::kUint8},
    {"<u2", DataType::kUint16},
    {"<u4", DataType::kUint32},
    {"<u8", DataType::kUint64},
    {"|i1", DataType::kInt8},
    {"<i2", DataType::kInt16},
    {"<i4", DataType::kInt32},
    {"<i8", DataType::kInt64},
    {"<f2", DataType::kFp16},
    {"<f4", DataType::kFp32},
    {"<f8", DataType::kFp64},
}};

absl::Status Malformed(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("malformed .npy header: ", what));
}

// Reader of the header's text, a Python dict literal with three keys.
class DictReader {
 public:
  explicit DictReader(absl::string_view text) : rest_(text) {}

  absl::Status Read(NpyHeader* header) {
    if (!Take("{")) {
      return Malformed("missing '{'");
    }
    while (!Take("}")) {
      absl::string_view key;
      if (!TakeString(&key) || !Take(":")) {
        return Malformed("expected \"'key':\"");
      }
      BRAID_RETURN_IF_ERROR(ReadValue(key, header));
      if (!Take(",") && !AtBrace()) {
        return Malformed("expected ',' or '}'");
      }
    }
    if (!has_descr_ || !has_order_ || !has_shape_) {
      return Malformed("'descr', 'fortran_order' or 'shape' is missing");
    }
    SkipSpace();
    return rest_.empty() ? absl::OkStatus() : Malformed("text after '}'");
  }

 private:
  absl::Status ReadValue(absl::string_view key, NpyHeader* header) {
    if (key == "descr") {
      has_descr_ = true;
      return ReadDescr(header);
    }
    if (key == "shape") {
      has_shape_ = true;
      header->shape.clear();
      return ReadShape(header);
    }
    if (key != "fortran_order") {
      return Malformed(absl::StrCat("unknown key '", Excerpt(key), "'"));
    }
    has_order_ = true;
    if (Take("False")) {
      return absl::OkStatus();
    }
    if (!Take("True")) {
      return Malformed("'fortran_order' is neither True nor False");
    }
    return absl::InvalidArgumentError(
        "array in Fortran order (expected C order: save numpy.ascontiguousarray(array))");
  }

  absl::Status ReadDescr(NpyHeader* header) {
    absl::string_view descr;
    if (!TakeString(&descr)) {
      return absl::InvalidArgumentError(
          "structured array (expected one dtype: save one array per field)");
    }
    const auto* const found = std::find_if(kDescriptors.begin(), kDescriptors.end(),
                                           [&](const auto& row) { return row.first == descr; });
    if (found == kDescriptors.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "dtype '", Excerpt(descr),
          "' (expected little-endian booleans, integers or floats of at most 64 bits)"));
    }
    header->type = found->second;
    return absl::OkStatus();
  }

  absl::Status ReadShape(NpyHeader* header) {
    if (!Take("(")) {
      return Malformed("'shape' is not a tuple");
    }
    while (!Take(")")) {
      SkipSpace();
      const auto digits = static_cast<size_t>(
          std::find_if_not(rest_.begin(), rest_.end(), absl::ascii_isdigit) - rest_.begin());
      int64_t dim = 0;
      if (!absl::SimpleAtoi(rest_.substr(0, digits), &dim)) {
        return Malformed("a dimension is not an integer below 2^63");
      }
      rest_.remove_prefix(digits);
      header->shape.push_back(dim);
      if (header->shape.size() > kMaxRank) {
        return Malformed("more than 64 dimensions");
      }
      if (!Take(",")) {
        // Python's "(3)" is not a tuple.
        return header->shape.size() > 1 && Take(")") ? absl::OkStatus()
                                                     : Malformed("'shape' is not a tuple");
      }
    }
    return absl::OkStatus();
  }

  void SkipSpace() { rest_ = absl::StripLeadingAsciiWhitespace(rest_); }

  bool Take(absl::string_view token) {
    SkipSpace();
    return absl::ConsumePrefix(&rest_, token);
  }

  bool AtBrace() {
    SkipSpace();
    return !rest_.empty() && rest_.front() == '}';
  }

  bool TakeString(absl::string_view* value) {
    SkipSpace();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) {
      return false;
    }
    const size_t end = rest_.find(rest_[0], 1);
    if (end == absl::string_view::npos) {
      return false;
    }
    *value = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return true;
  }

  absl::string_view rest_;
  bool has_descr_ = false;
  bool has_order_ = false;
  bool has_shape_ = false;
};

}  // namespace

absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view file) {
  absl::string_view rest = file;
  if (!absl::ConsumePrefix(&rest, kMagic) || rest.size() < 2) {
    return absl::DataLossError("not a .npy file (expected an array saved by numpy.save)");
  }
  const int major = static_cast<unsigned char>(rest[0]);
  rest.remove_prefix(2);
  if (major < 1 || major > 3) {
    return absl::InvalidArgumentError(
        absl::StrCat(".npy format version ", major, " (expected 1, 2 or 3)"));
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  if (rest.size() < length_bytes) {
    return Malformed("the file ends in the header");
  }
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) {
    length |= size_t{static_cast<unsigned char>(rest[i])} << (8 * i);
  }
  rest.remove_prefix(length_bytes);
  if (rest.size() < length) {
    return Malformed(absl::StrCat("length ", length, " (expected at most ", rest.size(), ")"));
  }
  NpyHeader header;
  BRAID_RETURN_IF_ERROR(DictReader(rest.substr(0, length)).Read(&header));
  header.data_offset = file.size() - rest.size() + length;
  return header;
}

absl::StatusOr<std::string> FormatNpyHeader(DataType type, const std::vector<int64_t>& shape) {
  const auto* const found = std::find_if(kDescriptors.begin(), kDescriptors.end(),
                                         [&](const auto& row) { return row.second == type; });
  if (found == kDescriptors.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("NumPy has no ", DataTypeName(type), " (use another datatype)"));
  }
  std::string text =
      absl::StrCat("{'descr': '", found->first, "', 'fortran_order': False, 'shape': (",
                   absl::StrJoin(shape, ", "), shape.size() == 1 ? ",), }" : "), }");
  // Magic, version and a length of two bytes come first.
  constexpr size_t kText = kNpyHeaderBytes - kMagic.size() - 4;
  if (text.size() + 1 > kText) {
    return absl::InvalidArgumentError(
        absl::StrCat("array of ", shape.size(), " dimensions does not fit the .npy header"));
  }
  text.append(kText - 1 - text.size(), ' ');
  text += '\n';
  return absl::StrCat(kMagic, absl::string_view("\x01\x00", 2),
                      std::string({static_cast<char>(kText & 0xFF), static_cast<char>(kText >> 8)}),
                      text);
}

}  // namespace braid
