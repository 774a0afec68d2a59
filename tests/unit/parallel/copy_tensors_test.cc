#include "server/parallel/copy_tensors.h"

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/record_function.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

TEST(CopyTensorsTest, CopiesEachDatatypeWithOneCall) {
  const std::vector<at::Tensor> from = {at::rand({2, 3}), at::arange(4), at::rand({5}),
                                        at::scalar_tensor(7, at::kLong)};
  std::vector<at::Tensor> to;
  for (const at::Tensor& tensor : from) {
    to.push_back(at::zeros_like(tensor));
  }
  static int calls;
  calls = 0;
  const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function)
                                     -> std::unique_ptr<at::ObserverContext> {
        calls += std::string_view(function.name()) == "aten::_foreach_copy_" ? 1 : 0;
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  CopyTensors(to, from);
  at::removeCallback(handle);
  EXPECT_EQ(calls, 2);
  for (size_t i = 0; i < from.size(); ++i) {
    EXPECT_TRUE(at::equal(to[i], from[i])) << i;
  }
}

TEST(CopyTensorsTest, CopiesLazilyNegatedTensors) {
  const at::Tensor to = at::_neg_view(at::zeros({2}));
  const at::Tensor from = at::_neg_view(at::ones({2}));
  CopyTensors({to, at::zeros({2})}, {at::ones({2}), from});
  EXPECT_TRUE(at::equal(to.resolve_neg(), at::ones({2})));
}

TEST(CopyTensorsTest, AcceptsNoTensors) { CopyTensors({}, {}); }

}  // namespace
}  // namespace braid
