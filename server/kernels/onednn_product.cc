#include "server/kernels/onednn_product.h"

#include <string_view>

#include "ATen/Context.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/List.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/ops/addmm_ops.h"
#include "ATen/ops/mm_ops.h"
#include "c10/core/GradMode.h"
#include "torch/library.h"

namespace braid {
namespace {

// For fewer multiplications MKL is faster for some sizes.
constexpr int64_t kMinMultiplications = int64_t{1} << 25;

thread_local bool products_of_thread = false;

// True for row-major and column-major matrices.
bool IsPlainMatrix(const at::Tensor& tensor) {
  return IsPlainFloat(tensor) && tensor.dim() == 2 &&
         (tensor.is_contiguous() || tensor.t().is_contiguous());
}

bool IsLargeProduct(const at::Tensor& left, const at::Tensor& right) {
  return products_of_thread && IsFreeOfModes() && IsPlainMatrix(left) && IsPlainMatrix(right) &&
         left.size(1) == right.size(0) && left.numel() * right.size(1) >= kMinMultiplications;
}

at::Tensor Mm(c10::DispatchKeySet keys, const at::Tensor& left, const at::Tensor& right) {
  if (IsLargeProduct(left, right)) {
    return OneDnnLinear(left, right.t(), std::nullopt);
  }
  return at::_ops::mm::redispatch(BelowThreadKernels(keys), left, right);
}

at::Tensor Addmm(c10::DispatchKeySet keys, const at::Tensor& added, const at::Tensor& left,
                 const at::Tensor& right, const at::Scalar& beta, const at::Scalar& alpha) {
  if (IsLargeProduct(left, right) && FitsAsBias(added, right.size(1)) && beta.equal(1) &&
      alpha.equal(1)) {
    return OneDnnLinear(left, right.t(), added);
  }
  return at::_ops::addmm::redispatch(BelowThreadKernels(keys), added, left, right, beta, alpha);
}

}  // namespace

bool IsPlainFloat(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
         tensor.scalar_type() == at::kFloat && !tensor.is_nested() && !tensor.is_neg() &&
         !tensor._is_zerotensor();
}

bool FitsAsBias(const std::optional<at::Tensor>& bias, int64_t outputs) {
  return !bias || !bias->defined() ||
         (IsPlainFloat(*bias) && bias->dim() == 1 && bias->size(0) == outputs &&
          bias->is_contiguous());
}

bool IsFreeOfModes() {
  return !c10::GradMode::is_enabled() && !at::autocast::is_autocast_enabled(at::kCPU);
}

bool HasOneDnn() { return at::hasMKLDNN() && at::globalContext().userEnabledMkldnn(); }

at::Tensor OneDnnLinear(const at::Tensor& input, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias) {
  using Scalars = c10::List<std::optional<at::Scalar>>;
  static const auto kLinear =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
          .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                            std::string_view, Scalars, std::optional<std::string_view>)>();
  const at::AutoDispatchBelowADInplaceOrView no_gradient;
  return kLinear.call(input, weight, bias, "none", Scalars(), "");
}

OneDnnProductsGuard::OneDnnProductsGuard() : outer_(products_of_thread) {
  products_of_thread = HasOneDnn();
}

OneDnnProductsGuard::~OneDnnProductsGuard() { products_of_thread = outer_; }

}  // namespace braid

TORCH_LIBRARY_IMPL(aten, DeferredInit, library) {
  library.impl("mm", &braid::Mm);
  library.impl("addmm", &braid::Addmm);
}
