#include "server/devices/torch_log.h"

#include <ios>
#include <sstream>

#include "c10/util/Logging.h"

namespace braid {

void LimitTorchLog() { FLAGS_caffe2_log_level = c10::GLOG_ERROR; }

}  // namespace braid

namespace c10 {

// In the place of LibTorch's own, which the dynamic linker finds second. LibTorch's interpreter of
// exported graphs describes every operator that it runs, twice, in messages that nobody sees, and
// asks only afterwards: a third of a small model's forward pass. A stream that has failed formats
// nothing.
std::stringstream& MessageLogger::stream() {
  if (severity_ < FLAGS_caffe2_log_level) {
    stream_.setstate(std::ios::failbit);
  }
  return stream_;
}

}  // namespace c10
