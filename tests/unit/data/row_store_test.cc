#include "server/data/row_store.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/data/array_source.h"
#include "server/data/npy_header.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RowStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    PutNpy("pixels", MakeHost<int32_t>("", {3, 2}, {0, 1, 2, 3, 4, 300}));
    PutNpy("label", MakeHost<int64_t>("", {3}, {7, 8, 9}));
    std::vector<std::shared_ptr<const DataFile>> files;
    for (const char* name : {"pixels.npy", "label.npy"}) {
      BRAID_ASSERT_OK_AND_ASSIGN(auto file, DataFile::Open(dir_.path() / name));
      files.push_back(std::move(file));
    }
    BRAID_ASSERT_OK_AND_ASSIGN(source_, OpenArraySource(files, dir_.path()));
  }

  void PutNpy(const std::string& name, const HostTensor& tensor) const {
    Put(dir_.path() / (name + ".npy"),
        FormatNpyHeader(tensor.type, tensor.shape).value() +
            std::string(static_cast<const char*>(tensor.data), tensor.bytes));
  }

  const TempDir dir_;
  std::unique_ptr<DataSource> source_;
};

TEST_F(RowStoreTest, GathersRowsInAnyOrder) {
  BRAID_ASSERT_OK_AND_ASSIGN(
      const auto store,
      MapRows(*source_, {{"x", {"pixels"}, DataType::kFp32, 0.5}, {"target", {"label"}}}));
  EXPECT_EQ(store->rows(), 3);
  EXPECT_EQ(store->row_bytes(), 2 * sizeof(float) + sizeof(int64_t));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, store->Gather({2, 0, 2}));
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "x");
  EXPECT_EQ(tensors[0].type, DataType::kFp32);
  EXPECT_THAT(tensors[0].shape, ElementsAre(3, 2));
  EXPECT_THAT(ValuesOf<float>(tensors[0]), ElementsAre(2, 150, 0, 0.5, 2, 150));
  EXPECT_EQ(tensors[1].name, "target");
  EXPECT_THAT(tensors[1].shape, ElementsAre(3));
  EXPECT_THAT(ValuesOf<int64_t>(tensors[1]), ElementsAre(9, 7, 9));
}

TEST_F(RowStoreTest, NamesTheValueThatCannotBeConverted) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto store,
                             MapRows(*source_, {{"x", {"pixels"}, DataType::kUint8}}));
  EXPECT_THAT(store->Gather({0, 1}), IsOk());
  EXPECT_THAT(store->Gather({0, 2}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("column 'pixels', row 2: value 300 of type INT32")));
}

TEST_F(RowStoreTest, ScalesOnlyFloatingPoint) {
  EXPECT_THAT(MapRows(*source_, {{"x", {"pixels"}, DataType::kInt64, 2}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("scaled as INT64")));
  EXPECT_THAT(MapRows(*source_, {{"x", {"image"}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unknown column 'image'")));
}

TEST_F(RowStoreTest, NoticesThatAFileChanges) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto store, MapRows(*source_, {{"y", {"label"}}}));
  std::filesystem::resize_file(dir_.path() / "label.npy", 10);
  EXPECT_THAT(store->Gather({1}), StatusIs(absl::StatusCode::kAborted, HasSubstr("label.npy")));
}

}  // namespace
}  // namespace braid
