// braid.v1.DeviceService: lists the server's devices.
#pragma once

#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "braid/v1/device.grpc.pb.h"
#include "server/devices/device_slot_view.h"
#include "server/rpc/call.h"

namespace braid {

// Thread-safe.
class DeviceService final : public braid::v1::DeviceService::CallbackService {
 public:
  // The pointers in `rpc`, and the workers that `list` reads, outlive the service.
  DeviceService(ListSlots list, const RpcContext& rpc)
      : list_(std::move(list)), rpc_(rpc), start_(absl::Now()) {}

  grpc::ServerUnaryReactor* ListDevices(grpc::CallbackServerContext* context,
                                        const braid::v1::ListDevicesRequest* request,
                                        braid::v1::ListDevicesResponse* response) override;

 private:
  const ListSlots list_;
  const RpcContext rpc_;
  const absl::Time start_;
};

}  // namespace braid
