#include "server/storage/mapping/memory_file.h"

#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(MemoryFileTest, CanBeReadRepeatedlyByItsPath) {
  const std::string bytes("a\0b", 3);
  BRAID_ASSERT_OK_AND_ASSIGN(const MemoryFile file, MemoryFile::Create("model.pt2", bytes));
  EXPECT_EQ(Read(file.path()), bytes);
  EXPECT_EQ(Read(file.path()), bytes);
}

TEST(MemoryFileTest, IsReadOnly) {
  BRAID_ASSERT_OK_AND_ASSIGN(const MemoryFile file, MemoryFile::Create("model.pt2", "as it was"));
  std::ofstream writer(file.path(), std::ios::binary | std::ios::in);
  writer << "other";
  writer.close();
  EXPECT_EQ(Read(file.path()), "as it was");
}

TEST(MemoryFileTest, IsRemovedWithItsObject) {
  std::string path;
  {
    BRAID_ASSERT_OK_AND_ASSIGN(MemoryFile file, MemoryFile::Create("model.pt2", "here"));
    const MemoryFile moved = std::move(file);
    path = moved.path();
    EXPECT_EQ(Read(path), "here");
  }
  EXPECT_FALSE(std::ifstream(path).good());
}

}  // namespace
}  // namespace braid
