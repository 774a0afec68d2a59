#include "server/training/step/device_scalars.h"

#include <memory>
#include <tuple>
#include <utility>

#include "ATen/ops/aminmax.h"
#include "ATen/ops/stack.h"
#include "server/base/status.h"

namespace braid {

void DeviceScalars::Add(const at::Tensor& number, OnNumber on_number) {
  if (!staging_.needed() || number.device() != staging_.device()) {
    on_number(number.item<double>());
    return;
  }
  pending_.push_back({number.detach().to(at::kDouble).reshape({}), std::move(on_number)});
}

void DeviceScalars::AddRange(const at::Tensor& values, OnRange on_range) {
  const auto [min, max] = at::aminmax(values);
  const auto smallest = std::make_shared<double>();
  Add(min, [smallest](double number) { *smallest = number; });
  Add(max,
      [smallest, on_range = std::move(on_range)](double number) { on_range(*smallest, number); });
}

absl::Status DeviceScalars::Read(Worker& worker) {
  const std::vector<Pending> pending = std::exchange(pending_, {});
  if (pending.empty()) {
    return worker.Synchronize();
  }
  std::vector<at::Tensor> numbers;
  for (const Pending& each : pending) {
    numbers.push_back(each.number);
  }
  const at::Tensor together = at::stack(numbers);
  const at::Tensor host = staging_.Empty(together.sizes(), at::kDouble);
  host.copy_(together, /*non_blocking=*/true);
  BRAID_RETURN_IF_ERROR(worker.Synchronize());
  const double* const values = host.const_data_ptr<double>();
  for (size_t n = 0; n < pending.size(); ++n) {
    pending[n].on_number(values[n]);
  }
  return absl::OkStatus();
}

}  // namespace braid
