#include "server/devices/device_spec.h"

#include <map>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/base/status.h"

namespace braid {
namespace {

constexpr int kMaxSlots = 64;
constexpr absl::string_view kGrammar = "auto, cpu*N, cuda, cuda:I or cuda:I*N, separated by commas";

absl::Status Reject(absl::string_view item, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", item, "' ", why, " (expected ", kGrammar, ")"));
}

// Number of workers on the CPU and on each GPU.
struct Counts {
  int cpu = 0;
  std::map<int, int> cuda;
};

// Removes "*3" from "cpu*3" and returns 3; returns 1 without a count.
absl::StatusOr<int> TakeCount(absl::string_view whole, absl::string_view* item) {
  const size_t star = item->find('*');
  if (star == absl::string_view::npos) {
    return 1;
  }
  int count = 0;
  if (!absl::SimpleAtoi(item->substr(star + 1), &count) || count < 1 || count > kMaxSlots) {
    return Reject(whole, absl::StrCat("has an invalid number of workers, not 1 to ", kMaxSlots));
  }
  *item = item->substr(0, star);
  return count;
}

absl::Status AddGpu(absl::string_view whole, int index, int workers, int gpus, Counts* counts) {
  if (index >= gpus) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", whole, "' names a GPU that does not exist (this machine has ", gpus, ")"));
  }
  if (!counts->cuda.emplace(index, workers).second) {
    return Reject(whole, "names a GPU twice");
  }
  return absl::OkStatus();
}

absl::Status AddItem(absl::string_view whole, const absl::StatusOr<int>& gpus, Counts* counts) {
  absl::string_view item = whole;
  BRAID_ASSIGN_OR_RETURN(const int workers, TakeCount(whole, &item));
  if (item == "cpu") {
    counts->cpu += workers;
    return absl::OkStatus();
  }
  const bool every_gpu = item == "cuda";
  int index = -1;
  if (!every_gpu &&
      (!absl::ConsumePrefix(&item, "cuda:") || !absl::SimpleAtoi(item, &index) || index < 0)) {
    return Reject(whole, "is not a device");
  }
  if (!gpus.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", whole, "' needs a GPU, but none can be used: ", gpus.status().message()));
  }
  if (!every_gpu) {
    return AddGpu(whole, index, workers, *gpus, counts);
  }
  for (int i = 0; i < *gpus; ++i) {
    BRAID_RETURN_IF_ERROR(AddGpu(whole, i, workers, *gpus, counts));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<DeviceSlot>> ParseDevices(absl::string_view text,
                                                     const absl::StatusOr<int>& gpus) {
  if (text == "auto") {
    text = gpus.ok() ? "cuda" : "cpu*2";
  }
  Counts counts;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    BRAID_RETURN_IF_ERROR(AddItem(absl::StripAsciiWhitespace(item), gpus, &counts));
  }
  std::vector<DeviceSlot> slots;
  for (const auto& [index, workers] : counts.cuda) {
    for (int w = 0; w < workers; ++w) {
      const std::string shared = workers > 1 ? absl::StrCat("/", w) : "";
      slots.push_back({DeviceKind::kCuda, index, absl::StrCat("cuda:", index, shared)});
    }
  }
  for (int i = 0; i < counts.cpu; ++i) {
    slots.push_back({DeviceKind::kCpu, i, absl::StrCat("cpu:", i)});
  }
  if (slots.size() > kMaxSlots) {
    return Reject(text, absl::StrCat("has more than ", kMaxSlots, " device slots"));
  }
  return slots;
}

}  // namespace braid
