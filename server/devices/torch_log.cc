#include "server/devices/torch_log.h"

#include "c10/util/Logging.h"

namespace braid {

void LimitTorchLog() { FLAGS_caffe2_log_level = c10::GLOG_ERROR; }

}  // namespace braid
