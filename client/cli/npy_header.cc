#include "client/cli/npy_header.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace braid::cli {
namespace {

constexpr absl::string_view kMagic = "\x93NUMPY";
// NumPy's own limit on dimensions is 32, and 64 since 2.0.
constexpr size_t kMaxRank = 64;

constexpr std::pair<absl::string_view, absl::string_view> kDescriptors[] = {
    {"|b1", "BOOL"},   {"|u1", "UINT8"}, {"<u2", "UINT16"}, {"<u4", "UINT32"},
    {"<u8", "UINT64"}, {"|i1", "INT8"},  {"<i2", "INT16"},  {"<i4", "INT32"},
    {"<i8", "INT64"},  {"<f2", "FP16"},  {"<f4", "FP32"},   {"<f8", "FP64"},
};

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed .npy header: ", what));
}

// The header's text is a Python dict literal of three keys; this reads just that much of Python.
class DictReader {
 public:
  explicit DictReader(absl::string_view text) : rest_(text) {}

  absl::Status Read(NpyHeader* header) {
    if (!Take("{")) return Malformed("no '{'");
    while (!Take("}")) {
      absl::string_view key;
      if (!TakeString(&key) || !Take(":")) return Malformed("expected \"'key':\"");
      absl::Status status = ReadValue(key, header);
      if (!status.ok()) return status;
      if (!Take(",") && !AtBrace()) return Malformed("expected ',' or '}'");
    }
    if (!descr_ || !order_ || !shape_) {
      return Malformed("'descr', 'fortran_order' or 'shape' is missing");
    }
    SkipSpace();
    return rest_.empty() ? absl::OkStatus() : Malformed("text after '}'");
  }

 private:
  absl::Status ReadValue(absl::string_view key, NpyHeader* header) {
    bool* seen = key == "descr"           ? &descr_
                 : key == "fortran_order" ? &order_
                 : key == "shape"         ? &shape_
                                          : nullptr;
    if (seen == nullptr) return Malformed(absl::StrCat("unknown key '", key, "'"));
    if (std::exchange(*seen, true)) return Malformed(absl::StrCat("'", key, "' comes twice"));
    if (key == "descr") return ReadDescr(header);
    if (key == "shape") return ReadShape(header);
    if (Take("False")) return absl::OkStatus();
    if (!Take("True")) return Malformed("'fortran_order' is neither True nor False");
    return absl::InvalidArgumentError(
        "the array is in Fortran order: save numpy.ascontiguousarray of it");
  }

  absl::Status ReadDescr(NpyHeader* header) {
    absl::string_view descr;
    if (!TakeString(&descr)) {
      return absl::InvalidArgumentError("structured arrays are not supported: save one per field");
    }
    for (const auto& [name, datatype] : kDescriptors) {
      if (name != descr) continue;
      header->datatype = std::string(datatype);
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("dtype '", descr, "' is not supported: ",
                     "bool, integers and floats of at most 64 bits, little-endian, are"));
  }

  absl::Status ReadShape(NpyHeader* header) {
    if (!Take("(")) return Malformed("'shape' is no tuple");
    while (!Take(")")) {
      SkipSpace();
      const size_t digits =
          std::find_if_not(rest_.begin(), rest_.end(), absl::ascii_isdigit) - rest_.begin();
      int64_t dim = 0;
      if (!absl::SimpleAtoi(rest_.substr(0, digits), &dim)) {
        return Malformed("a dimension is no integer between 0 and 2^63 - 1");
      }
      rest_.remove_prefix(digits);
      header->shape.push_back(dim);
      if (header->shape.size() > kMaxRank) return Malformed("more than 64 dimensions");
      if (!Take(",")) {
        // Python's "(3)" is no tuple.
        if (header->shape.size() == 1 || !Take(")")) return Malformed("'shape' is no tuple");
        break;
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
    return absl::StartsWith(rest_, "}");
  }

  bool TakeString(absl::string_view* value) {
    SkipSpace();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) return false;
    const size_t end = rest_.find(rest_[0], 1);
    if (end == absl::string_view::npos) return false;
    *value = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return true;
  }

  absl::string_view rest_;
  bool descr_ = false;
  bool order_ = false;
  bool shape_ = false;
};

}  // namespace

absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view file) {
  absl::string_view rest = file;
  if (!absl::ConsumePrefix(&rest, kMagic) || rest.size() < 2) {
    return absl::InvalidArgumentError("not a .npy file: save arrays with numpy.save");
  }
  const int major = static_cast<unsigned char>(rest[0]);
  const int minor = static_cast<unsigned char>(rest[1]);
  rest.remove_prefix(2);
  if ((major != 1 && major != 2) || minor != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(".npy format ", major, ".", minor, " is not supported: 1.0 and 2.0 are"));
  }
  const size_t length_size = major == 1 ? 2 : 4;
  if (rest.size() < length_size) return Malformed("the file ends in it");
  size_t length = 0;
  for (size_t i = 0; i < length_size; ++i) {
    length |= size_t{static_cast<unsigned char>(rest[i])} << (8 * i);
  }
  rest.remove_prefix(length_size);
  if (rest.size() < length) return Malformed("the file ends in it");
  NpyHeader header;
  if (absl::Status status = DictReader(rest.substr(0, length)).Read(&header); !status.ok()) {
    return status;
  }
  header.data_offset = file.size() - rest.size() + length;
  return header;
}

absl::StatusOr<std::string> FormatNpyHeader(absl::string_view datatype,
                                            absl::Span<const int64_t> shape) {
  const auto* found = std::find_if(std::begin(kDescriptors), std::end(kDescriptors),
                                   [&](const auto& entry) { return entry.second == datatype; });
  if (found == std::end(kDescriptors)) {
    return absl::InvalidArgumentError(absl::StrCat("NumPy has no ", datatype));
  }
  std::string text =
      absl::StrCat("{'descr': '", found->first, "', 'fortran_order': False, ", "'shape': (",
                   absl::StrJoin(shape, ", "), shape.size() == 1 ? ",), }" : "), }");
  // Magic, version and a two-byte length come first, a newline last: 64 dimensions fit easily.
  constexpr size_t kPrefix = kMagic.size() + 4;
  text.append(63 - (kPrefix + text.size()) % 64, ' ');
  text += '\n';
  std::string header(kMagic);
  header +=
      {'\x01', '\x00', static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return header + text;
}

}  // namespace braid::cli
