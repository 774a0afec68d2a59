#include "server/graph/stored_tensors.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "caffe2/serialize/inline_container.h"
#include "nlohmann/json.hpp"
#include "server/base/json_fields.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/graph/schema_types.h"

namespace braid {
namespace {

using Reader = caffe2::serialize::PyTorchStreamReader;
using Kind = Program::Input::Kind;

constexpr int64_t kStrided = 7;  // in torch.export's schema

absl::StatusOr<int64_t> ReadSize(const JsonField& field) {
  BRAID_ASSIGN_OR_RETURN(const JsonField number, field.Get("as_int"));
  BRAID_ASSIGN_OR_RETURN(const int64_t size, number.Integer());
  return size >= 0 ? absl::StatusOr<int64_t>(size) : number.Error("is negative");
}

absl::StatusOr<std::vector<int64_t>> ReadSizes(const JsonField& meta, const char* name) {
  BRAID_ASSIGN_OR_RETURN(const JsonField field, meta.Get(name));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, field.Items());
  std::vector<int64_t> sizes;
  for (const JsonField& item : items) {
    BRAID_ASSIGN_OR_RETURN(sizes.emplace_back(), ReadSize(item));
  }
  return sizes;
}

// Returns the number of elements of storage up to the tensor's last one; nullopt on overflow.
std::optional<int64_t> Extent(const std::vector<int64_t>& sizes,
                              const std::vector<int64_t>& strides, int64_t offset) {
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) {
    return 0;
  }
  int64_t last = offset;
  for (size_t d = 0; d < sizes.size(); ++d) {
    int64_t span = 0;
    if (__builtin_mul_overflow(sizes[d] - 1, strides[d], &span) ||
        __builtin_add_overflow(last, span, &last)) {
      return std::nullopt;
    }
  }
  return last < INT64_MAX ? std::optional(last + 1) : std::nullopt;
}

// Folder of the archive, data/weights/ or data/constants/, with the graph's index of it.
class Folder {
 public:
  static absl::StatusOr<Folder> Open(Reader* reader, const std::string& folder,
                                     const std::string& config) {
    const std::string record = absl::StrCat(folder, config);
    Folder opened(reader, folder);
    if (!reader->hasRecord(record)) {
      return opened;
    }
    const auto [data, size] = reader->getRecord(record);
    const auto* const text = static_cast<const char*>(data.get());
    opened.json_ = std::make_unique<nlohmann::json>(
        nlohmann::json::parse(text, text + size, nullptr, /*allow_exceptions=*/false));
    return opened;
  }

  bool Has(const std::string& name) const {
    return json_ != nullptr && json_->is_object() && json_->contains("config") &&
           (*json_)["config"].is_object() && (*json_)["config"].contains(name);
  }

  absl::StatusOr<StoredTensor> Read(const std::string& name) {
    const JsonField payload((*json_)["config"][name],
                            absl::StrCat(folder_, " of '", Excerpt(name), "'"));
    BRAID_ASSIGN_OR_RETURN(const JsonField pickle, payload.Get("use_pickle"));
    BRAID_ASSIGN_OR_RETURN(const bool is_pickled, pickle.Boolean());
    if (is_pickled) {
      return payload.Error("a tensor subclass or another object (expected a plain tensor)");
    }
    BRAID_ASSIGN_OR_RETURN(const JsonField path, payload.Get("path_name"));
    BRAID_ASSIGN_OR_RETURN(const std::string file, path.String());
    BRAID_ASSIGN_OR_RETURN(const JsonField meta, payload.Get("tensor_meta"));
    BRAID_ASSIGN_OR_RETURN(const c10::Storage storage, ReadStorage(path, file));
    return View(meta, storage);
  }

 private:
  Folder(Reader* reader, std::string folder) : reader_(reader), folder_(std::move(folder)) {}

  absl::StatusOr<c10::Storage> ReadStorage(const JsonField& field, const std::string& file) {
    c10::Storage& storage = storages_[file];
    if (!storage) {
      const std::string record = absl::StrCat(folder_, file);
      if (!reader_->hasRecord(record)) {
        return field.Error(absl::StrCat("'", Excerpt(record), "' is not in the archive"));
      }
      auto [data, size] = reader_->getRecord(record);
      storage = c10::Storage(c10::Storage::use_byte_size_t(), size, std::move(data),
                             /*allocator=*/nullptr, /*resizable=*/false);
    }
    return storage;
  }

  static absl::StatusOr<StoredTensor> View(const JsonField& meta, const c10::Storage& storage) {
    BRAID_ASSIGN_OR_RETURN(const JsonField type_field, meta.Get("dtype"));
    BRAID_ASSIGN_OR_RETURN(const int64_t number, type_field.Integer());
    const std::optional<c10::ScalarType> type = SchemaScalarType(number);
    BRAID_ASSIGN_OR_RETURN(const JsonField layout_field, meta.Get("layout"));
    BRAID_ASSIGN_OR_RETURN(const int64_t layout, layout_field.Integer());
    if (!type || layout != kStrided) {
      return meta.Error("not a strided tensor of a known datatype");
    }
    BRAID_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, ReadSizes(meta, "sizes"));
    BRAID_ASSIGN_OR_RETURN(const std::vector<int64_t> strides, ReadSizes(meta, "strides"));
    BRAID_ASSIGN_OR_RETURN(const JsonField offset_field, meta.Get("storage_offset"));
    BRAID_ASSIGN_OR_RETURN(const int64_t offset, ReadSize(offset_field));
    BRAID_ASSIGN_OR_RETURN(const JsonField device_field, meta.Get("device"));
    BRAID_ASSIGN_OR_RETURN(const JsonField kind_field, device_field.Get("type"));
    BRAID_ASSIGN_OR_RETURN(const std::string device, kind_field.String());
    if (strides.size() != sizes.size()) {
      return meta.Error("different numbers of strides and sizes");
    }
    const auto element = static_cast<int64_t>(c10::elementSize(*type));
    const std::optional<int64_t> extent = Extent(sizes, strides, offset);
    if (!extent || *extent > static_cast<int64_t>(storage.nbytes()) / element) {
      return meta.Error(
          absl::StrCat("the tensor exceeds its storage of ", storage.nbytes(), " bytes"));
    }
    StoredTensor stored;
    stored.on_gpu = device != "cpu";
    stored.value = at::empty({0}, *type);
    if (*extent > 0) {
      stored.value.set_(storage, offset, sizes, strides);
    } else {
      stored.value.resize_(sizes);
    }
    return stored;
  }

  Reader* const reader_;
  const std::string folder_;
  std::unique_ptr<nlohmann::json> json_;  // nullptr: not in the archive
  std::map<std::string, c10::Storage> storages_;
};

absl::StatusOr<std::vector<StoredTensor>> ReadAll(Reader* reader, const std::string& graph,
                                                  const Program& program) {
  const c10::AutoGradMode no_grad(false);
  BRAID_ASSIGN_OR_RETURN(Folder weights,
                         Folder::Open(reader, "data/weights/", graph + "_weights_config.json"));
  BRAID_ASSIGN_OR_RETURN(Folder constants,
                         Folder::Open(reader, "data/constants/", graph + "_constants_config.json"));
  std::vector<StoredTensor> tensors(program.inputs().size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Program::Input& input = program.inputs()[i];
    if (input.kind == Kind::kUser || input.kind == Kind::kLiteral) {
      continue;
    }
    // Buffers that are not persistent are among the constants.
    Folder& folder = weights.Has(input.name) ? weights : constants;
    if (!folder.Has(input.name)) {
      return absl::FailedPreconditionError(
          absl::StrCat("'", Excerpt(input.name), "' is not in the archive"));
    }
    BRAID_ASSIGN_OR_RETURN(tensors[i], folder.Read(input.name));
  }
  return tensors;
}

}  // namespace

absl::StatusOr<std::vector<StoredTensor>> ReadStoredTensors(const std::string& path,
                                                            const std::string& graph,
                                                            const Program& program) {
  const bool any = std::any_of(
      program.inputs().begin(), program.inputs().end(),
      [](const auto& input) { return input.kind != Kind::kUser && input.kind != Kind::kLiteral; });
  if (!any) {
    return std::vector<StoredTensor>(program.inputs().size());
  }
  try {
    Reader reader(path);
    return ReadAll(&reader, graph, program);
  } catch (const c10::Error& error) {
    return absl::FailedPreconditionError(
        absl::StrCat("the archive is damaged: ", FirstLine(error.what_without_backtrace())));
  }
}

std::vector<at::Tensor> PlaceTensors(const std::vector<StoredTensor>& tensors, c10::Device device) {
  const c10::AutoGradMode no_grad(false);
  std::map<const c10::StorageImpl*, at::Tensor> copies;  // of whole storages
  std::vector<at::Tensor> placed;
  placed.reserve(tensors.size());
  for (const StoredTensor& stored : tensors) {
    const at::Tensor& value = stored.value;
    if (!value.defined() || !stored.on_gpu || device.is_cpu()) {
      placed.push_back(value);
      continue;
    }
    at::Tensor& copy = copies[value.storage().unsafeGetStorageImpl()];
    if (!copy.defined()) {
      const auto bytes = static_cast<int64_t>(value.storage().nbytes());
      copy = at::empty({0}, at::kByte).set_(value.storage(), 0, {bytes}, {1}).to(device);
    }
    placed.push_back(
        at::empty({0}, value.options().device(device))
            .set_(copy.storage(), value.storage_offset(), value.sizes(), value.strides()));
  }
  return placed;
}

}  // namespace braid
