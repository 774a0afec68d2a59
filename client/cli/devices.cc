// `braid devices`: what the server runs on, and how busy each device was.
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "client/cli/command.h"
#include "client/cli/table.h"

namespace braid::cli {
namespace {

using Json = nlohmann::ordered_json;

// In the order of a training step; a phase that the server adds later comes after these.
constexpr absl::string_view kPhases[] = {"load",   "copy_in", "forward",   "loss",    "backward",
                                         "reduce", "update",  "broadcast", "copy_out"};

absl::string_view KindName(v1::Device::Kind kind) {
  switch (kind) {
    case v1::Device::KIND_CPU:
      return "cpu";
    case v1::Device::KIND_CUDA:
      return "cuda";
    default:
      return "unknown";
  }
}

// The phases that any device spent time in.
std::vector<std::string> UsedPhases(const v1::ListDevicesResponse& reply) {
  std::map<std::string, double> total;
  for (const v1::Device& device : reply.devices()) {
    for (const auto& [phase, seconds] : device.busy_seconds()) total[phase] += seconds;
  }
  std::vector<std::string> phases;
  for (absl::string_view phase : kPhases) {
    if (auto node = total.extract(std::string(phase)); node && node.mapped() > 0) {
      phases.push_back(node.key());
    }
  }
  for (const auto& [phase, seconds] : total) {
    if (seconds > 0) phases.push_back(phase);
  }
  return phases;
}

double BusySeconds(const v1::Device& device) {
  double total = 0;
  for (const auto& [phase, seconds] : device.busy_seconds()) total += seconds;
  return total;
}

std::string Share(double seconds, double uptime) {
  return uptime > 0 ? absl::StrFormat("%.1f%%", 100 * seconds / uptime) : "-";
}

void PrintTable(const v1::ListDevicesResponse& reply) {
  const std::vector<std::string> phases = UsedPhases(reply);
  std::vector<std::vector<std::string>> rows = {
      {"device", "kind", "threads", "hardware", "samples", "busy"}};
  rows[0].insert(rows[0].end(), phases.begin(), phases.end());
  for (const v1::Device& device : reply.devices()) {
    std::vector<std::string> row = {device.name(),
                                    std::string(KindName(device.kind())),
                                    device.threads() > 0 ? absl::StrCat(device.threads()) : "-",
                                    device.hardware().empty() ? "-" : device.hardware(),
                                    absl::StrCat(device.samples()),
                                    Share(BusySeconds(device), reply.uptime_seconds())};
    for (const std::string& phase : phases) {
      auto busy = device.busy_seconds().find(phase);
      row.push_back(
          Share(busy == device.busy_seconds().end() ? 0 : busy->second, reply.uptime_seconds()));
    }
    rows.push_back(std::move(row));
  }
  std::cout << FormatTable(rows)
            << absl::StrFormat("up for %.0f s; shares are of that time\n", reply.uptime_seconds());
}

void PrintDevicesJson(const v1::ListDevicesResponse& reply) {
  Json devices = Json::array();
  for (const v1::Device& device : reply.devices()) {
    const std::map<std::string, double> busy(device.busy_seconds().begin(),
                                             device.busy_seconds().end());
    devices.push_back({{"device", device.name()},
                       {"kind", KindName(device.kind())},
                       {"threads", device.threads()},
                       {"hardware", device.hardware()},
                       {"samples", device.samples()},
                       {"busy_seconds", busy}});
  }
  PrintJson({{"uptime_seconds", reply.uptime_seconds()}, {"devices", std::move(devices)}});
}

}  // namespace

Command AddDevices(CLI::App& braid) {
  CLI::App* app = braid.add_subcommand("devices",
                                       "List the server's devices and what share of the time since "
                                       "its start each was busy, by phase");
  return {app, [](const GlobalOptions& global) {
            auto client = Connect(global);
            if (!client.ok()) return Fail(client.status());
            absl::StatusOr<v1::ListDevicesResponse> reply = (*client)->Devices();
            if (!reply.ok()) return Fail(reply.status());
            if (global.json) {
              PrintDevicesJson(*reply);
            } else {
              PrintTable(*reply);
            }
            return kOk;
          }};
}

}  // namespace braid::cli
