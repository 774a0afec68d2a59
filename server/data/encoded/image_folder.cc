#include "server/data/encoded/image_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "arrow/array.h"
#include "arrow/builder.h"
#include "arrow/record_batch.h"
#include "arrow/type.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/data/arrow_status.h"
#include "server/data/data_paths.h"
#include "server/data/encoded/file_reader.h"
#include "server/storage/checksum.h"
#include "server/storage/file_error.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr std::array<absl::string_view, 4> kImageSuffixes = {".jpg", ".jpeg", ".png", ".webp"};
constexpr absl::string_view kExpectedImages = "expected .jpg, .jpeg, .png or .webp files";
// More levels are probably a loop of links.
constexpr int kMaxDepth = 32;
// Bytes of files in one batch.
constexpr size_t kImageBatchBytes = size_t{16} << 20;
constexpr int64_t kMaxImageRows = 65'536;

bool HasDotName(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.empty() || name.front() == '.';
}

// Names in a directory, sorted, without hidden ones.
struct Children {
  std::vector<std::string> directories;
  std::vector<std::string> images;
  std::string other;  // first file that is not an image and does not start with '_'; "": none
};

absl::StatusOr<Children> ListChildren(const fs::path& directory,
                                      const std::vector<std::string>& roots) {
  Children children;
  std::error_code error;
  for (fs::directory_iterator child(directory, error), end; !error && child != end;
       child.increment(error)) {
    if (HasDotName(child->path())) {
      continue;
    }
    // Leaves out an entry that was deleted since it was listed.
    std::error_code gone;
    const bool is_directory = child->is_directory(gone);
    if (!is_directory && !IsImageFile(child->path().native())) {
      const std::string name = child->path().filename();
      if (name.front() != '_' && (children.other.empty() || name < children.other)) {
        children.other = name;
      }
      continue;
    }
    // Only a link can lead out of a directory. One to nowhere is a file that cannot be read.
    if (child->is_symlink(gone) && child->exists(gone) && !ResolvesBelowAny(child->path(), roots)) {
      return OutsideRootsError(child->path().native(), roots);
    }
    (is_directory ? children.directories : children.images).push_back(child->path().filename());
  }
  if (error) {
    return FileError(error.value(), "list", directory.native());
  }
  std::sort(children.directories.begin(), children.directories.end());
  std::sort(children.images.begin(), children.images.end());
  return children;
}

// Paths and labels of all images, and a checksum of their names, sizes and times.
class Listing {
 public:
  Listing(const std::string& directory, const std::vector<std::string>& roots)
      : directory_(directory), roots_(roots) {}

  // Adds the images in `name`, relative to the directory, and in the directories below. Returns how
  // many there are.
  absl::StatusOr<int64_t> AddTree(const std::string& name, int64_t label) {
    std::vector<std::pair<std::string, std::vector<std::string>>> folders;
    BRAID_RETURN_IF_ERROR(ListTree(name, 0, &folders));
    // torchvision sorts folders by their whole paths, in which '/' comes after other characters.
    std::sort(folders.begin(), folders.end());
    int64_t images = 0;
    for (const auto& [folder, files] : folders) {
      for (const std::string& file : files) {
        BRAID_RETURN_IF_ERROR(Add(absl::StrCat(folder, "/", file), label));
        ++images;
      }
    }
    return images;
  }

  absl::Status Add(const std::string& path, int64_t label) {
    struct stat about = {};
    const std::string absolute = absl::StrCat(directory_, "/", path);
    // A link to nowhere has neither size nor time.
    if (stat(absolute.c_str(), &about) != 0 && !fs::is_symlink(absolute)) {
      return FileError(errno, "read", absolute);
    }
    checksum_.Add(absl::StrCat(path, "\n", about.st_size, " ", about.st_mtim.tv_sec, " ",
                               about.st_mtim.tv_nsec, "\n"));
    BRAID_RETURN_IF_ERROR(FromArrow(paths_.Append(path), "list", directory_));
    return FromArrow(labels_.Append(label), "list", directory_);
  }

  absl::StatusOr<std::shared_ptr<arrow::StringArray>> Paths() {
    std::shared_ptr<arrow::StringArray> paths;
    BRAID_RETURN_IF_ERROR(FromArrow(paths_.Finish(&paths), "list", directory_));
    return paths;
  }
  absl::StatusOr<std::shared_ptr<arrow::Int64Array>> Labels() {
    std::shared_ptr<arrow::Int64Array> labels;
    BRAID_RETURN_IF_ERROR(FromArrow(labels_.Finish(&labels), "list", directory_));
    return labels;
  }
  std::string Identity() const {
    return absl::StrCat("images in ", directory_, "\n", checksum_.Hex(), "\n");
  }

 private:
  absl::Status ListTree(const std::string& name, int depth,
                        std::vector<std::pair<std::string, std::vector<std::string>>>* folders) {
    if (depth > kMaxDepth) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", Excerpt(name), "' is more than ", kMaxDepth,
                       " folders deep (expected fewer, and no loop of links)"));
    }
    BRAID_ASSIGN_OR_RETURN(Children children, ListChildren(fs::path(directory_) / name, roots_));
    for (const std::string& child : children.directories) {
      BRAID_RETURN_IF_ERROR(ListTree(absl::StrCat(name, "/", child), depth + 1, folders));
    }
    folders->emplace_back(name, std::move(children.images));
    return absl::OkStatus();
  }

  const std::string& directory_;
  const std::vector<std::string>& roots_;
  Checksum checksum_;
  arrow::StringBuilder paths_;
  arrow::Int64Builder labels_;
};

struct Contents {
  std::string directory;
  std::vector<std::string> roots;
  std::vector<std::string> classes;  // empty: the images are in the directory itself
  std::shared_ptr<arrow::StringArray> paths;
  std::shared_ptr<arrow::Int64Array> labels;
  std::string identity;

  int64_t rows() const { return paths->length(); }
};

class ImageScan final : public RowScan {
 public:
  ImageScan(std::shared_ptr<const Contents> contents, std::shared_ptr<arrow::Schema> schema,
            int64_t first_row, int64_t batch_rows)
      : contents_(std::move(contents)),
        reader_(contents_->directory, contents_->roots),
        schema_(std::move(schema)),
        batch_rows_(batch_rows > 0 ? batch_rows : kMaxImageRows),
        next_(std::min(first_row, contents_->rows())) {}

  absl::StatusOr<std::shared_ptr<arrow::RecordBatch>> Next() override {
    const int64_t begin = next_;
    int64_t end = std::min(contents_->rows(), begin + batch_rows_);
    if (begin == end) {
      return nullptr;
    }
    std::shared_ptr<arrow::Array> images;
    if (schema_->GetFieldIndex("image") >= 0) {
      BRAID_ASSIGN_OR_RETURN(images, ReadImages(begin, end));
      end = begin + images->length();
    }
    std::vector<std::shared_ptr<arrow::Array>> columns;
    for (const std::string& name : schema_->field_names()) {
      if (name == "image") {
        columns.push_back(images);
      } else if (name == "label") {
        columns.push_back(contents_->labels->Slice(begin, end - begin));
      } else if (name == "path") {
        columns.push_back(contents_->paths->Slice(begin, end - begin));
      } else {
        BRAID_ASSIGN_OR_RETURN(std::shared_ptr<arrow::Array> classes, Classes(begin, end));
        columns.push_back(std::move(classes));
      }
    }
    next_ = end;
    return arrow::RecordBatch::Make(schema_, end - begin, std::move(columns));
  }

 private:
  // Reads rows [begin, end), fewer if they are large, but at least one.
  absl::StatusOr<std::shared_ptr<arrow::Array>> ReadImages(int64_t begin, int64_t end) {
    arrow::BinaryBuilder builder;
    size_t bytes = 0;
    for (int64_t row = begin; row < end && bytes < kImageBatchBytes; ++row) {
      const std::string_view path = contents_->paths->GetView(row);
      BRAID_ASSIGN_OR_RETURN(const std::string image, reader_.Read({path.data(), path.size()}));
      BRAID_RETURN_IF_ERROR(FromArrow(builder.Append(image), "read", contents_->directory));
      bytes += image.size();
    }
    std::shared_ptr<arrow::Array> images;
    BRAID_RETURN_IF_ERROR(FromArrow(builder.Finish(&images), "read", contents_->directory));
    return images;
  }

  absl::StatusOr<std::shared_ptr<arrow::Array>> Classes(int64_t begin, int64_t end) const {
    arrow::StringBuilder builder;
    for (int64_t row = begin; row < end; ++row) {
      const auto label = static_cast<size_t>(contents_->labels->Value(row));
      BRAID_RETURN_IF_ERROR(
          FromArrow(builder.Append(contents_->classes[label]), "read", contents_->directory));
    }
    std::shared_ptr<arrow::Array> classes;
    BRAID_RETURN_IF_ERROR(FromArrow(builder.Finish(&classes), "read", contents_->directory));
    return classes;
  }

  const std::shared_ptr<const Contents> contents_;
  const FileReader reader_;
  const std::shared_ptr<arrow::Schema> schema_;
  const int64_t batch_rows_;
  int64_t next_;
};

class ImageFolderSource final : public DataSource {
 public:
  ImageFolderSource(std::shared_ptr<const Contents> contents, std::shared_ptr<arrow::Schema> schema,
                    std::vector<Column> columns)
      : contents_(std::move(contents)), schema_(std::move(schema)), columns_(std::move(columns)) {}

  absl::string_view format() const override { return "images"; }
  const std::vector<Column>& columns() const override { return columns_; }
  const std::shared_ptr<arrow::Schema>& schema() const override { return schema_; }
  std::string Identity() const override { return contents_->identity; }
  bool KeepsFiles() const override { return false; }
  absl::StatusOr<int64_t> Rows() override { return contents_->rows(); }
  std::optional<int64_t> KnownRows() const override { return contents_->rows(); }
  std::string PathColumn(absl::string_view column) const override {
    return column == "image" ? "path" : "";
  }

  absl::StatusOr<std::unique_ptr<RowScan>> Scan(const ScanOptions& options) override {
    BRAID_ASSIGN_OR_RETURN(const std::vector<int> indices,
                           ColumnIndices(columns_, options.columns));
    std::vector<std::shared_ptr<arrow::Field>> fields;
    for (const int index : indices) {
      fields.push_back(schema_->field(index));
    }
    return std::make_unique<ImageScan>(contents_, arrow::schema(std::move(fields)),
                                       options.first_row, options.batch_rows);
  }

 private:
  const std::shared_ptr<const Contents> contents_;
  const std::shared_ptr<arrow::Schema> schema_;
  const std::vector<Column> columns_;
};

}  // namespace

bool IsImageFile(absl::string_view path) {
  return std::any_of(kImageSuffixes.begin(), kImageSuffixes.end(), [&](absl::string_view suffix) {
    return absl::EndsWithIgnoreCase(path, suffix);
  });
}

bool IsImageFolder(const std::string& directory,
                   absl::FunctionRef<bool(const std::string& path)> is_data) {
  bool found = false;
  std::error_code error;
  for (fs::directory_iterator child(directory, error), end; !error && child != end;
       child.increment(error)) {
    std::error_code gone;
    if (HasDotName(child->path())) {
      continue;
    }
    if (child->is_directory(gone) || IsImageFile(child->path().native())) {
      found = true;
    } else if (child->path().filename().native().front() != '_' && is_data(child->path())) {
      return false;
    }
  }
  return found;
}

absl::StatusOr<std::unique_ptr<DataSource>> OpenImageFolder(const std::string& directory,
                                                            const std::vector<std::string>& roots) {
  BRAID_ASSIGN_OR_RETURN(Children children, ListChildren(directory, roots));
  Listing listing(directory, roots);
  const bool flat = !children.images.empty();
  if (flat && !children.directories.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "directory '", directory, "' has images and the folder '", children.directories.front(),
        "' (expected images only, or a folder for each class)"));
  }
  if (flat && !children.other.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", directory, "/", Excerpt(children.other),
                                                   "' is not an image (", kExpectedImages,
                                                   " only)"));
  }
  for (const std::string& image : children.images) {
    BRAID_RETURN_IF_ERROR(listing.Add(image, 0));
  }
  for (size_t c = 0; c < children.directories.size(); ++c) {
    const std::string& name = children.directories[c];
    BRAID_ASSIGN_OR_RETURN(const int64_t images, listing.AddTree(name, static_cast<int64_t>(c)));
    if (images == 0) {
      return absl::InvalidArgumentError(absl::StrCat("class folder '", directory, "/",
                                                     Excerpt(name), "' has no images (",
                                                     kExpectedImages, ")"));
    }
  }
  auto contents = std::make_shared<Contents>();
  contents->directory = directory;
  contents->roots = roots;
  contents->classes = std::move(children.directories);
  BRAID_ASSIGN_OR_RETURN(contents->paths, listing.Paths());
  BRAID_ASSIGN_OR_RETURN(contents->labels, listing.Labels());
  contents->identity = listing.Identity();
  if (contents->rows() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("directory '", directory, "' has no images (", kExpectedImages, ")"));
  }
  std::vector<std::shared_ptr<arrow::Field>> fields = {
      arrow::field("image", arrow::binary(), /*nullable=*/false)};
  if (!flat) {
    fields.push_back(arrow::field("label", arrow::int64(), /*nullable=*/false));
    fields.push_back(arrow::field("class", arrow::utf8(), /*nullable=*/false));
  }
  fields.push_back(arrow::field("path", arrow::utf8(), /*nullable=*/false));
  std::shared_ptr<arrow::Schema> schema = arrow::schema(std::move(fields));
  BRAID_ASSIGN_OR_RETURN(std::vector<Column> columns, ColumnsOf(*schema));
  return std::make_unique<ImageFolderSource>(std::move(contents), std::move(schema),
                                             std::move(columns));
}

}  // namespace braid
