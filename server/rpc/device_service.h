// braid.v1.DeviceService: what the server runs on.
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
  // What `rpc` points to outlives the service, and so do the workers that `list` reads.
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
