#include "server/models/torchscript/batch_size_check.h"

#include <string>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "torch/csrc/jit/api/compilation_unit.h"
#include "torch/csrc/jit/frontend/resolver.h"

namespace braid {
namespace {

// Function of nn.functional that TorchScript compiles into batch norms.
constexpr char kSource[] = R"(
def _verify_batch_size(size: List[int]) -> None:
  values = size[0]
  for i in range(len(size) - 2):
    values *= size[i + 2]
  assert values != 1, "Expected more than 1 value per channel when training"

def batch_norm(x: Tensor) -> Tensor:
  _verify_batch_size(x.size())
  return 2 * x
)";

// Creates a module that has kSource in its `python_module`.
torch::jit::Module ModuleWith(const std::string& python_module) {
  torch::jit::Module module("Made");
  module._ivalue()->compilation_unit()->define(c10::QualifiedName(python_module), kSource,
                                               torch::jit::nativeResolver(), nullptr);
  return module;
}

at::Tensor BatchNormOfOneRow(const torch::jit::Module& module, const std::string& python_module) {
  const auto code = module._ivalue()->compilation_unit();
  return code->get_function(python_module + ".batch_norm")({at::ones({1, 4})}).toTensor();
}

TEST(RemoveBatchSizeChecksTest, AllowsOneRow) {
  for (const std::string name :
       {"__torch__.torch.nn.functional", "__torch__.torch.nn.functional.___torch_mangle_3"}) {
    EXPECT_ANY_THROW(BatchNormOfOneRow(ModuleWith(name), name));
    const torch::jit::Module module = ModuleWith(name);
    RemoveBatchSizeChecks(module);
    EXPECT_TRUE(at::equal(BatchNormOfOneRow(module, name), at::full({1, 4}, 2.)));
  }
}

TEST(RemoveBatchSizeChecksTest, KeepsChecksOfTheModel) {
  const std::string name = "__torch__.my_model";
  const torch::jit::Module module = ModuleWith(name);
  RemoveBatchSizeChecks(module);
  EXPECT_ANY_THROW(BatchNormOfOneRow(module, name));
}

}  // namespace
}  // namespace braid
