#include "server/flags.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <limits>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/base/version.h"

namespace braid {
namespace {

// CLI::Range lets what is no number pass.
CLI::Validator Between(double least, double most) {
  return CLI::Validator(
      [least, most](const std::string& text) -> std::string {
        double value = 0;
        if (absl::SimpleAtod(text, &value) && value >= least && value <= most) {
          return {};
        }
        return absl::StrCat("Value ", text, " not in range ", least, " to ", most);
      },
      absl::StrCat("FLOAT in [", least, " - ", most, "]"));
}

constexpr char kDescription[] =
    "Braid: serves and trains PyTorch models on all devices of a machine, over gRPC.\n"
    "Each batch is split over the devices, run in parallel and gathered.";

constexpr char kFooter[] =
    "Examples:\n"
    "  braid-server --model_repository=models                    every GPU, else two CPU workers\n"
    "  braid-server --model_repository=models --devices=cpu*4    four CPU workers\n"
    "  braid-server --model_repository=models --devices=cuda:0*2 two workers on the first GPU\n"
    "\n"
    "SIGTERM and SIGINT drain: not ready, nothing new, finish what is in flight, exit 0.\n"
    "A second signal ends the delay and waits one second for what is in flight; a third ends at "
    "once.\n"
    "Exit codes: 0 done, 1 something was lost, 2 a flag, port or directory that is wrong.";

void AddModelFlags(CLI::App* app, Options* options, double* poll_seconds) {
  static const std::map<std::string, ControlMode> kModes = {{"none", ControlMode::kNone},
                                                            {"explicit", ControlMode::kExplicit},
                                                            {"poll", ControlMode::kPoll}};
  app->add_option("--model_control_mode", options->model_control_mode,
                  "none: every model, as it is at the start; explicit: what is asked for; poll: "
                  "every model, as it is at any time")
      ->type_name("none|explicit|poll")
      ->transform(CLI::Transformer(kModes))
      ->default_str("none");
  app->add_option("--load_model", options->load_models,
                  "In the mode explicit: loaded at the start; '*': all; may be repeated")
      ->type_name("NAME")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_flag("--exit_on_error", options->exit_on_error,
                "End if a model cannot be loaded at the start; else the others are served");
  app->add_option("--model_allowlist", options->model_allowlist,
                  "Load only files whose SHA-256 is in it; lines as sha256sum prints them, paths "
                  "relative to the repository")
      ->type_name("FILE");
  app->add_option("--operator_libraries", options->operator_libraries,
                  "Shared libraries with operators that TorchScript models use, loaded in their "
                  "order; commas between")
      ->type_name("FILE,...")
      ->delimiter(',');
  app->add_option("--repository_poll_seconds", *poll_seconds,
                  "In the mode poll: how often the repository is looked at")
      ->check(Between(0.05, 86400.0))
      ->capture_default_str();
}

void AddLogFlags(CLI::App* app, Options* options) {
  static const std::map<std::string, LogFormat> kFormats = {{"text", LogFormat::kText},
                                                            {"json", LogFormat::kJson}};
  app->add_option("--log_format", options->log_format, "One line a message, or one JSON object")
      ->type_name("text|json")
      ->transform(CLI::Transformer(kFormats))
      ->default_str("text");
  const auto parse = [options](const std::string& text) {
    absl::StatusOr<LogLevels> levels = ParseLogLevels(text, options->log_levels);
    if (!levels.ok()) {
      throw CLI::ValidationError("--log_level", std::string(levels.status().message()));
    }
    options->log_levels = *levels;
  };
  app->add_option_function<std::string>(
         "--log_level", parse,
         "trace, debug, info, warning, error, critical or off; of single modules: "
         "server, rpc, models, training, devices, storage, access (a line for each call)")
      ->type_name("LEVEL,MODULE=LEVEL")
      ->default_str("info,access=off");
  app->add_option("--profile", options->profile,
                  "Write a Chrome trace of the first training operations, but for three, to it")
      ->type_name("FILE");
  app->add_option("--profile_steps", options->profile_steps,
                  "How many operations --profile records")
      ->check(CLI::Range(int64_t{1}, int64_t{10000}))
      ->capture_default_str();
}

// What the flags say of times.
struct LifecycleSeconds {
  double max_connection_age = 0;        // 0: none
  double max_connection_age_grace = 0;  // 0: as long as it takes
  double max_connection_idle = 0;       // 0: for ever
  double drain_delay = 0;
  double drain_timeout = 0;
};

// Health, how connections end, and how the server does.
void AddLifecycleFlags(CLI::App* app, Options* options, LifecycleSeconds* seconds) {
  app->add_option("--health_port", options->health_port,
                  "grpc.health.v1 in plaintext, for probes; 0 picks a free one; default: none")
      ->check(CLI::Range(0, 65535));
  app->add_option("--ready_file", options->ready_file,
                  "Written when ready: {\"grpc_port\":…,\"metrics_port\":…,\"pid\":…}")
      ->type_name("PATH");
  app->add_option("--max_connection_age", seconds->max_connection_age,
                  "Seconds after which a client is asked to connect anew; 0: never")
      ->check(Between(0.0, 86400.0))
      ->capture_default_str();
  app->add_option("--max_connection_age_grace", seconds->max_connection_age_grace,
                  "Seconds that its calls then have left; 0: as long as they take")
      ->check(Between(0.0, 86400.0))
      ->capture_default_str();
  app->add_option("--max_connection_idle", seconds->max_connection_idle,
                  "Seconds without a call after which a connection is closed; 0: never")
      ->check(Between(0.0, 86400.0))
      ->capture_default_str();
  app->add_option("--drain_delay", seconds->drain_delay,
                  "Seconds after SIGTERM in which requests are still taken")
      ->check(Between(0.0, 86400.0))
      ->capture_default_str();
  app->add_option("--drain_timeout", seconds->drain_timeout,
                  "Seconds that SIGTERM then waits for requests in flight")
      ->check(Between(0.0, 86400.0))
      ->capture_default_str();
}

void AddAccessFlags(CLI::App* app, Options* options) {
  app->add_option("--tls_cert", options->tls_cert,
                  "The server's certificate, and those up to the root, in PEM")
      ->type_name("FILE");
  app->add_option("--tls_key", options->tls_key, "Its key, in PEM, without a password")
      ->type_name("FILE");
  app->add_option("--tls_client_ca", options->tls_client_ca,
                  "Clients have to show a certificate of one of these authorities")
      ->type_name("FILE");
  app->add_option("--auth_tokens", options->auth_tokens,
                  "Who may do what, by token; lines ROLE[:MODEL][,...] sha256:HEX NAME, where a "
                  "role is infer, train or admin")
      ->type_name("FILE");
  app->add_option("--auth_certificates", options->auth_certificates,
                  "Who may do what, by client certificate; lines ROLE[:MODEL][,...] IDENTITY")
      ->type_name("FILE");
  app->add_flag("--allow_unauthenticated", options->allow_unauthenticated,
                "Listen beyond loopback without --auth_tokens or --auth_certificates: everybody "
                "may do everything");
  app->add_flag("--tls_terminated_in_front", options->tls_terminated_in_front,
                "Take tokens in plaintext beyond loopback: something in front has TLS");
}

// What flags need of each other, but for what depends on --listen.
void CheckAccessFlags(const Options& options) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    throw CLI::ValidationError(options.tls_cert.empty() ? "--tls_key" : "--tls_cert",
                               "needs --tls_cert and --tls_key, both");
  }
  if (!options.tls_client_ca.empty() && options.tls_cert.empty()) {
    throw CLI::ValidationError("--tls_client_ca", "needs --tls_cert and --tls_key");
  }
  if (!options.auth_certificates.empty() && options.tls_client_ca.empty()) {
    throw CLI::ValidationError("--auth_certificates",
                               "needs --tls_client_ca, which verifies the certificates");
  }
}

void AddModelsAndDevicesFlags(CLI::App* app, Options* options) {
  app->add_option("--model_repository", options->model_repository,
                  "Folder with <model>/<version>/model.pt, and config.pbtxt where wanted")
      ->type_name("DIR")
      ->required()
      ->check(CLI::ExistingDirectory);
  app->add_option("--data_dir", options->data_dir, "Folder for what outlives the server")
      ->type_name("DIR");
  app->add_option("--devices", options->devices,
                  "auto (every GPU, else cpu*2), cpu*N, cuda, cuda:I, cuda:I*N; commas between")
      ->type_name("LIST")
      ->capture_default_str();
  app->add_option("--cpu_threads", options->cpu_threads,
                  "Intra-op threads of each CPU worker; 0: cores / CPU workers")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app->add_option("--training_share", options->training_share,
                  "Training's part of a device that inference wants too")
      ->check(Between(0.0, 0.9))
      ->capture_default_str();
  app->add_flag("--overlap_reduction", options->overlap_reduction,
                "Sum gradients between GPUs during the backward pass (experimental)");
  app->add_flag("--tf32", options->tf32, "float32 products on GPUs may round to TF32");
  app->add_flag("--deterministic", options->deterministic,
                "Only algorithms that repeat bit for bit; operators without one fail");
}

void AddNetworkFlags(CLI::App* app, Options* options) {
  app->add_option("--listen", options->listen, "Address for gRPC and metrics")
      ->type_name("HOST")
      ->capture_default_str();
  app->add_option("--grpc_port", options->grpc_port, "0 picks a free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app->add_option("--metrics_port", options->metrics_port, "0 picks a free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  auto* const refuse = app->add_flag("--refuse_compression", options->refuse_compression,
                                     "Refuse compressed messages (default beyond loopback)");
  app->add_flag("--accept_compression", options->accept_compression,
                "Accept compressed messages beyond loopback; one of 1 MB can unpack to 1 GB")
      ->excludes(refuse);
  app->add_flag("--allow_client_shared_memory", options->allow_client_shared_memory,
                "Clients on this machine may pass tensors in shared memory and in memory of GPUs");
}

void AddLimitFlags(CLI::App* app, Options* options) {
  app->add_option("--max_requests", options->max_requests,
                  "In flight at most; more are refused with RESOURCE_EXHAUSTED")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  app->add_option("--max_request_bytes", options->max_request_bytes,
                  "Of all requests in flight together at most")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 60))
      ->capture_default_str();
  app->add_option(
         "--max_client_requests", options->max_client_requests,
         "In flight of one client, an identity or an address, and streams that it has open; 0: "
         "no limit of its own")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  app->add_option("--max_client_request_bytes", options->max_client_request_bytes,
                  "Of all requests in flight of one client; 0: no limit of its own")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 60))
      ->capture_default_str();
  app->add_option("--max_connection_streams", options->max_connection_streams,
                  "Calls that one connection has open at once; more wait")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--max_message_bytes", options->max_message_bytes,
                  "Of a message that comes, unpacked if it is compressed; a larger one is refused")
      ->check(CLI::Range(int{1024}, std::numeric_limits<int>::max()))
      ->capture_default_str();
  app->add_option("--max_trainers", options->max_trainers,
                  "At work at once; more are refused with RESOURCE_EXHAUSTED")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
}

}  // namespace

std::optional<Options> ParseFlags(int argc, const char* const* argv, int* exit_code) {
  Options options;
  LifecycleSeconds seconds{0, 0, absl::ToDoubleSeconds(options.max_connection_idle),
                           absl::ToDoubleSeconds(options.drain_delay),
                           absl::ToDoubleSeconds(options.drain_timeout)};
  CLI::App app(kDescription, "braid-server");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("braid-server ") + kVersion);
  AddModelsAndDevicesFlags(&app, &options);
  AddNetworkFlags(&app, &options);
  AddLimitFlags(&app, &options);
  AddLifecycleFlags(&app, &options, &seconds);
  double poll_seconds = absl::ToDoubleSeconds(options.repository_poll);
  AddModelFlags(&app, &options, &poll_seconds);
  AddLogFlags(&app, &options);
  AddAccessFlags(&app, &options);
  try {
    app.parse(argc, argv);
    if (!options.load_models.empty() && options.model_control_mode != ControlMode::kExplicit) {
      throw CLI::ValidationError("--load_model", "is for --model_control_mode=explicit");
    }
    CheckAccessFlags(options);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      *exit_code = app.exit(error);
      return std::nullopt;
    }
    std::fprintf(stderr, "braid-server: %s (--help lists the flags)\n", error.what());
    *exit_code = 2;
    return std::nullopt;
  }
  if (seconds.max_connection_age > 0) {
    options.max_connection_age = absl::Seconds(seconds.max_connection_age);
  }
  options.max_connection_idle = seconds.max_connection_idle > 0
                                    ? absl::Seconds(seconds.max_connection_idle)
                                    : absl::InfiniteDuration();
  options.drain_delay = absl::Seconds(seconds.drain_delay);
  options.drain_timeout = absl::Seconds(seconds.drain_timeout);
  options.repository_poll = absl::Seconds(poll_seconds);
  if (seconds.max_connection_age_grace > 0) {
    options.max_connection_age_grace = absl::Seconds(seconds.max_connection_age_grace);
  }
  if (absl::StrContains(options.listen, ':') && options.listen.front() != '[') {
    options.listen = absl::StrCat("[", options.listen, "]");  // an IPv6 address, before its port
  }
  return options;
}

}  // namespace braid
