#include "server/telemetry/phase.h"

#include <array>
#include <cstddef>

namespace braid {
namespace {

constexpr std::array<absl::string_view, kPhases> kNames = {
    "load", "copy_in", "forward", "loss", "backward", "reduce", "update", "broadcast", "copy_out"};

}  // namespace

absl::string_view PhaseName(Phase phase) { return kNames[static_cast<size_t>(phase)]; }

}  // namespace braid
