#include "client/cpp/state_dict.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::GetStateDictResponse Piece(const std::string& name, const std::vector<int64_t>& shape,
                               int64_t offset, const std::string& data, bool parameter = true) {
  v1::GetStateDictResponse piece;
  piece.set_name(name);
  piece.set_datatype("INT16");
  piece.mutable_shape()->Assign(shape.begin(), shape.end());
  piece.set_offset(offset);
  piece.set_data(data);
  piece.set_parameter(parameter);
  return piece;
}

TEST(StateDictAssemblerTest, JoinsPiecesInOrder) {
  StateDictAssembler assembler;
  ASSERT_TRUE(assembler.Add(Piece("weight", {3}, 0, "aa")).ok());
  ASSERT_TRUE(assembler.Add(Piece("weight", {3}, 2, "bbcc")).ok());
  ASSERT_TRUE(assembler.Add(Piece("mean", {1, 1}, 0, "dd", false)).ok());
  absl::StatusOr<std::vector<StateEntry>> state = assembler.Finish();
  ASSERT_TRUE(state.ok()) << state.status();
  ASSERT_THAT(*state, SizeIs(2));
  const StateEntry& weight = state->front();
  EXPECT_EQ(weight.tensor.name, "weight");
  EXPECT_EQ(weight.tensor.datatype, "INT16");
  EXPECT_THAT(weight.tensor.shape, ElementsAre(3));
  EXPECT_EQ(weight.tensor.data, "aabbcc");
  EXPECT_TRUE(weight.parameter);
  EXPECT_THAT(state->back().tensor.shape, ElementsAre(1, 1));
  EXPECT_FALSE(state->back().parameter);
}

TEST(StateDictAssemblerTest, AcceptsEmptyTensorsAndScalars) {
  StateDictAssembler assembler;
  ASSERT_TRUE(assembler.Add(Piece("empty", {0, 4}, 0, "")).ok());
  ASSERT_TRUE(assembler.Add(Piece("num_batches_tracked", {}, 0, "aa")).ok());
  absl::StatusOr<std::vector<StateEntry>> state = assembler.Finish();
  ASSERT_TRUE(state.ok()) << state.status();
  ASSERT_THAT(*state, SizeIs(2));
  EXPECT_THAT(state->front().tensor.data, IsEmpty());
  EXPECT_EQ(state->back().tensor.data, "aa");
}

TEST(StateDictAssemblerTest, NoPiecesGiveAnEmptyStateDict) {
  absl::StatusOr<std::vector<StateEntry>> state = StateDictAssembler().Finish();
  ASSERT_TRUE(state.ok());
  EXPECT_THAT(*state, IsEmpty());
}

struct Wrong {
  std::vector<v1::GetStateDictResponse> pieces;
  std::string message;
};

class StateDictFaultTest : public ::testing::TestWithParam<Wrong> {};

TEST_P(StateDictFaultTest, ReturnsInternalAndNamesTheTensor) {
  StateDictAssembler assembler;
  absl::Status status;
  for (const v1::GetStateDictResponse& piece : GetParam().pieces) {
    if (status.ok()) status = assembler.Add(piece);
  }
  if (status.ok()) status = assembler.Finish().status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

v1::GetStateDictResponse UnknownDatatype() {
  v1::GetStateDictResponse piece = Piece("a", {1}, 0, "aa");
  piece.set_datatype("FP8");
  return piece;
}

INSTANTIATE_TEST_SUITE_P(
    Faults, StateDictFaultTest,
    ::testing::Values(
        Wrong{{Piece("a", {2}, 0, "aa")}, "\"a\" lacks 2 bytes"},
        Wrong{{Piece("a", {2}, 0, "aa"), Piece("b", {1}, 0, "bb")},
              "\"b\" begins while \"a\" lacks 2 bytes"},
        Wrong{{Piece("a", {2}, 0, "aa"), Piece("b", {2}, 2, "bb")}, "at offset 2 of \"b\""},
        Wrong{{Piece("a", {3}, 0, "aa"), Piece("a", {3}, 4, "bb")}, "has 2 bytes and lacks 4"},
        Wrong{{Piece("a", {2}, 0, "aa"), Piece("a", {2}, 2, "")}, "0 bytes at offset 2"},
        Wrong{{Piece("a", {1}, 0, "aabb")}, "4 bytes at offset 0"},
        Wrong{{Piece("a", {1}, -2, "aa")}, "at offset -2"},
        Wrong{{Piece("a", {-1}, 0, "aa")}, "negative dimension"},
        Wrong{{Piece("a", {int64_t{1} << 40, int64_t{1} << 40}, 0, "aa")}, "too many elements"},
        Wrong{{UnknownDatatype()}, "unknown value 'FP8'"}));

}  // namespace
}  // namespace braid::client
