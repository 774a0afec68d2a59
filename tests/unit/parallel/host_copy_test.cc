#include "server/parallel/host_copy.h"

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/host_tensors.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

TEST(HostCopyTest, EveryDatatypeHasItsScalarType) {
  for (const absl::string_view name : absl::StrSplit(AllDataTypeNames(), ", ")) {
    const DataType type = *DataTypeFromName(name);
    const c10::ScalarType scalar = ToScalarType(type);
    EXPECT_EQ(c10::elementSize(scalar), DataTypeSize(type)) << name;
    EXPECT_EQ(c10::isFloatingType(scalar), IsFloatingPoint(type)) << name;
    DataType back = DataType::kBool;
    EXPECT_TRUE(FromScalarType(scalar, &back)) << name;
    EXPECT_EQ(back, type) << name;
  }
}

TEST(HostCopyTest, RejectsUnsupportedScalarTypes) {
  DataType type = DataType::kFp64;
  EXPECT_FALSE(FromScalarType(c10::kComplexFloat, &type));
  EXPECT_FALSE(FromScalarType(c10::kQInt8, &type));
}

TEST(HostCopyTest, ViewSharesMemory) {
  const HostTensor host = MakeHost<int64_t>("ids", {2, 2}, {1, 2, 3, 4});
  const at::Tensor view = View(host);
  EXPECT_EQ(view.const_data_ptr(), host.data);
  EXPECT_TRUE(at::equal(view, at::arange(1, 5).view({2, 2})));
}

TEST(HostCopyTest, ViewSupportsZeroDim) {
  const HostTensor host = MakeHost<double>("scale", {}, {2.5});
  const at::Tensor view = View(host);
  EXPECT_EQ(view.dim(), 0);
  EXPECT_EQ(view.item<double>(), 2.5);
}

TEST(HostCopyTest, ViewRowsSlicesDimZero) {
  const HostTensor host = MakeHost<int64_t>("ids", {4, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_TRUE(at::equal(ViewRows(host, 1, 2), at::arange(2, 6).view({2, 2})));
  const HostTensor flat = MakeHost<int64_t>("ids", {6}, {0, 1, 2, 3, 4, 5});
  EXPECT_TRUE(at::equal(ViewRows(flat, 4, 2), at::arange(4, 6)));
}

TEST(HostCopyTest, ViewRowsReturnsWholeBroadcastTensor) {
  HostTensor host = MakeHost<int64_t>("mask", {2}, {8, 9});
  host.broadcast = true;
  EXPECT_TRUE(at::equal(ViewRows(host, 7, 5), at::arange(8, 10)));
}

TEST(HostCopyTest, ViewRowsSupportsRowsWithoutElements) {
  const HostTensor host = MakeHost<float>("none", {4, 0}, {});
  EXPECT_EQ(ViewRows(host, 1, 2).sizes(), (std::vector<int64_t>{2, 0}));
}

TEST(HostCopyTest, ToHostKeepsTheTensorAlive) {
  HostTensor host;
  {
    const at::Tensor tensor = at::arange(6).view({3, 2});
    host = ToHost(tensor, "y");
    EXPECT_EQ(host.data, tensor.const_data_ptr());  // no copy
  }
  EXPECT_EQ(host.name, "y");
  EXPECT_EQ(host.type, DataType::kInt64);
  EXPECT_THAT(host.shape, ElementsAre(3, 2));
  EXPECT_THAT(ValuesOf<int64_t>(host), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(HostCopyTest, ToHostMakesTensorContiguous) {
  const HostTensor host = ToHost(at::arange(6).view({3, 2}).t(), "y");
  EXPECT_THAT(host.shape, ElementsAre(2, 3));
  EXPECT_THAT(ValuesOf<int64_t>(host), ElementsAre(0, 2, 4, 1, 3, 5));
}

TEST(HostCopyTest, ToHostResolvesPendingNegationsAndZeros) {
  const at::Tensor tensor = at::arange(1, 4, at::kFloat);
  EXPECT_THAT(ValuesOf<float>(ToHost(at::_neg_view(tensor), "y")), ElementsAre(-1, -2, -3));
  EXPECT_THAT(ValuesOf<float>(ToHost(at::_efficientzerotensor({2}, at::kFloat), "y")),
              ElementsAre(0, 0));
}

TEST(HostCopyTest, MaterializeResolvesPendingOperations) {
  const at::Tensor turned = at::complex(at::ones({2}), at::ones({2})).conj();
  EXPECT_FALSE(Materialize(turned).is_conj());
  EXPECT_FALSE(Materialize(at::imag(turned)).is_neg());
  EXPECT_TRUE(at::equal(Materialize(at::imag(turned)), at::full({2}, -1.0)));
  const at::Tensor plain = at::ones({2});
  EXPECT_TRUE(Materialize(plain).is_same(plain));
}

}  // namespace
}  // namespace braid
