#include "server/rpc/device_service.h"

#include <string>

namespace braid {

grpc::ServerUnaryReactor* DeviceService::ListDevices(grpc::CallbackServerContext* context,
                                                     const braid::v1::ListDevicesRequest* request,
                                                     braid::v1::ListDevicesResponse* response) {
  return HandleUnary(rpc_, context, "ListDevices", *request, [&] {
    for (const DeviceSlotView& slot : list_()) {
      auto* device = response->add_devices();
      device->set_name(slot.name);
      device->set_kind(slot.kind == DeviceKind::kCpu ? braid::v1::Device::KIND_CPU
                                                     : braid::v1::Device::KIND_CUDA);
      device->set_threads(slot.threads);
      device->set_samples(slot.samples);
      device->set_hardware(slot.hardware);
      for (int p = 0; p < kPhases; ++p) {
        const auto phase = static_cast<Phase>(p);
        (*device->mutable_busy_seconds())[std::string(PhaseName(phase))] =
            absl::ToDoubleSeconds(slot.busy[static_cast<size_t>(p)]);
      }
    }
    response->set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - start_));
    return absl::OkStatus();
  });
}

}  // namespace braid
