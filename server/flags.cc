#include "server/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "server/base/version.h"
#include "server/remote/object_path.h"

namespace braid {
namespace {

// Validates a number in a range. CLI::Range accepts text that is not a number.
CLI::Validator Between(double min, double max) {
  return CLI::Validator(
      [min, max](const std::string& text) -> std::string {
        double value = 0;
        if (absl::SimpleAtod(text, &value) && value >= min && value <= max) {
          return {};
        }
        return absl::StrCat("Value ", text, " not in range ", min, " to ", max);
      },
      absl::StrCat("FLOAT in [", min, " - ", max, "]"));
}

// Validates a directory, or a path in S3, which is not checked before it is used.
CLI::Validator ExistingDirectoryOrS3() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        std::string checked = text;
        return IsObjectPath(text) ? "" : CLI::ExistingDirectory(checked);
      },
      "DIR or s3://BUCKET/PREFIX");
}

constexpr char kDescription[] =
    "Serves and trains PyTorch models on all devices of a machine, over gRPC.\n"
    "Splits each batch over the devices, runs the parts in parallel and gathers the outputs.";

constexpr char kFooter[] =
    "Examples:\n"
    "  braid-server --model_repository=models                    all GPUs, or two CPU workers\n"
    "  braid-server --model_repository=models --devices=cpu*4    four CPU workers\n"
    "  braid-server --model_repository=models --devices=cuda:0*2 two workers on the first GPU\n"
    "\n"
    "SIGTERM and SIGINT drain: report not ready, reject new requests, finish those in flight, "
    "exit.\n"
    "A second signal skips the delay and waits one more second; a third exits immediately.\n"
    "Exit codes: 0 drained; 1 requests or checkpoints were lost; 2 invalid flag, port or "
    "directory.";

void AddModelFlags(CLI::App* app, Options* options, double* poll_seconds) {
  static const std::map<std::string, ControlMode> kModes = {{"none", ControlMode::kNone},
                                                            {"explicit", ControlMode::kExplicit},
                                                            {"poll", ControlMode::kPoll}};
  app->add_option(
         "--model_control_mode", options->model_control_mode,
         "Which models are served. none: all models at start; explicit: models that clients "
         "load; poll: all models, following changes of the repository")
      ->type_name("none|explicit|poll")
      ->transform(CLI::Transformer(kModes))
      ->default_str("none");
  app->add_option("--load_model", options->load_models,
                  "Model to load at start in explicit mode; '*' for all; may be repeated")
      ->type_name("NAME")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_flag("--exit_on_error", options->exit_on_error,
                "Exit if a model cannot be loaded at start; without it, serve the other models");
  app->add_option(
         "--model_allowlist", options->model_allowlist,
         "Load only files with a SHA-256 in this file: the output of sha256sum, with paths "
         "relative to the repository")
      ->type_name("FILE");
  app->add_option(
         "--operator_libraries", options->operator_libraries,
         "Shared libraries with operators for TorchScript models, in load order, separated "
         "by commas")
      ->type_name("FILE,...")
      ->delimiter(',');
  app->add_option("--repository_poll_seconds", *poll_seconds,
                  "Seconds between checks of the repository in poll mode")
      ->check(Between(0.05, 86400.0))
      ->capture_default_str();
}

void AddLogFlags(CLI::App* app, Options* options) {
  static const std::map<std::string, LogFormat> kFormats = {{"text", LogFormat::kText},
                                                            {"json", LogFormat::kJson}};
  app->add_option("--log_format", options->log_format, "Format of log lines")
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
         "trace, debug, info, warning, error, critical or off; also "
         "per module: server, rpc, models, "
         "training, devices, storage, jobs, access (one line per call)")
      ->type_name("LEVEL,MODULE=LEVEL")
      ->default_str("info,access=off");
  app->add_option(
         "--profile", options->profile,
         "Write a Chrome trace of training operations to this file, after three for warm-up")
      ->type_name("FILE");
  app->add_option("--profile_steps", options->profile_steps,
                  "Number of operations that --profile records")
      ->check(CLI::Range(int64_t{1}, int64_t{10000}))
      ->capture_default_str();
}

// Times in seconds, as the flags give them.
struct LifecycleSeconds {
  double max_connection_age = 0;        // 0: never
  double max_connection_age_grace = 0;  // 0: unlimited
  double max_connection_idle = 0;       // 0: never
  double drain_delay = 0;
  double drain_timeout = 0;
};

// Flags for health, connection lifetime and drain.
void AddLifecycleFlags(CLI::App* app, Options* options, LifecycleSeconds* seconds) {
  app->add_option("--health_port", options->health_port,
                  "Separate plaintext port for grpc.health.v1; 0 picks a free port; default: none")
      ->check(CLI::Range(0, 65535));
  app->add_option("--ready_file", options->ready_file,
                  "File to write when ready: {\"grpc_port\":…,\"metrics_port\":…,\"pid\":…}")
      ->type_name("PATH");
  app->add_option("--max_connection_age", seconds->max_connection_age,
                  "Seconds after which a client is asked to reconnect; 0: never")
      ->check(Between(0.0, 86400.0))
      ->capture_default_str();
  app->add_option("--max_connection_age_grace", seconds->max_connection_age_grace,
                  "Seconds that calls may continue after --max_connection_age; 0: unlimited")
      ->check(Between(0.0, 86400.0))
      ->capture_default_str();
  app->add_option("--max_connection_idle", seconds->max_connection_idle,
                  "Seconds without calls after which a connection is closed; 0: never")
      ->check(Between(0.0, 86400.0))
      ->capture_default_str();
  app->add_option("--drain_delay", seconds->drain_delay,
                  "Seconds after SIGTERM during which requests are still accepted")
      ->check(Between(0.0, 86400.0))
      ->capture_default_str();
  app->add_option("--drain_timeout", seconds->drain_timeout,
                  "Seconds that a drain then waits for requests in flight")
      ->check(Between(0.0, 86400.0))
      ->capture_default_str();
}

void AddAccessFlags(CLI::App* app, Options* options) {
  app->add_option("--tls_cert", options->tls_cert,
                  "PEM file with the server's certificate, followed by intermediate certificates")
      ->type_name("FILE");
  app->add_option("--tls_key", options->tls_key,
                  "PEM file with the certificate's key, without a password")
      ->type_name("FILE");
  app->add_option("--tls_client_ca", options->tls_client_ca,
                  "PEM file with authorities; clients must present a certificate of one of them")
      ->type_name("FILE");
  app->add_option(
         "--auth_tokens", options->auth_tokens,
         "Roles by token; lines ROLE[:MODEL][,...] sha256:HEX NAME; roles are infer, train "
         "and admin")
      ->type_name("FILE");
  app->add_option("--auth_certificates", options->auth_certificates,
                  "Roles by client certificate; lines ROLE[:MODEL][,...] IDENTITY")
      ->type_name("FILE");
  app->add_flag(
      "--allow_unauthenticated", options->allow_unauthenticated,
      "Allow --listen beyond loopback without authentication: every client has all roles");
  app->add_flag("--tls_terminated_in_front", options->tls_terminated_in_front,
                "Accept tokens in plaintext beyond loopback, because a proxy terminates TLS");
}

// Checks flags that require each other. CheckExposure() in server.cc checks --listen.
void CheckAccessFlags(const Options& options) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    throw CLI::ValidationError(options.tls_cert.empty() ? "--tls_key" : "--tls_cert",
                               "requires both --tls_cert and --tls_key");
  }
  if (!options.tls_client_ca.empty() && options.tls_cert.empty()) {
    throw CLI::ValidationError("--tls_client_ca", "requires --tls_cert and --tls_key");
  }
  if (!options.auth_certificates.empty() && options.tls_client_ca.empty()) {
    throw CLI::ValidationError("--auth_certificates",
                               "requires --tls_client_ca, which verifies the certificates");
  }
}

void AddDirectoryFlags(CLI::App* app, Options* options) {
  app->add_option("--model_repository", options->model_repository,
                  "Model repository: <model>/<version>/model.pt, with an optional config.pbtxt; a "
                  "directory or s3://BUCKET/PREFIX")
      ->type_name("DIR")
      ->required()
      ->check(ExistingDirectoryOrS3());
  app->add_option("--data_dir", options->data_dir,
                  "Directory for trainers and checkpoints; default: no storage")
      ->type_name("DIR");
  app->add_option("--data_root", options->data_roots,
                  "Directory with datasets for jobs and previews; may be repeated; relative paths "
                  "start at the first in which they exist; default: none")
      ->type_name("DIR")
      ->check(CLI::ExistingDirectory)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_option("--dataset_root", options->dataset_root,
                  "Directory for uploaded datasets, which jobs read like those of --data_root; "
                  "uploads need the role admin; default: no uploads")
      ->type_name("DIR");
  app->add_option("--dataset_quota", options->dataset_quota,
                  "Maximum bytes of all datasets in --dataset_root; uploads beyond it fail with "
                  "RESOURCE_EXHAUSTED; 0: unlimited")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 60))
      ->capture_default_str();
  app->add_option(
         "--s3_allow", options->s3_allow,
         "Prefixes s3://BUCKET/PREFIX with datasets that clients may read and outputs that "
         "jobs may write, separated by commas; may be repeated; default: none")
      ->type_name("URI,...")
      ->delimiter(',')
      ->expected(1, 1000)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->add_option("--output_root", options->output_root,
                  "Directory for the outputs of jobs; default: outputs in --data_dir")
      ->type_name("DIR");
  app->add_option(
         "--tracking_dir", options->tracking_dir,
         "Directory for metrics of every training step, as CSV, JSON Lines and TensorBoard "
         "event files; default: none")
      ->type_name("DIR");
  app->add_option("--data_cache_bytes", options->data_cache_bytes,
                  "Disk space for tables that jobs train on, packed in --data_dir/cache, and again "
                  "for copies of data in S3")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 60))
      ->capture_default_str();
}

void AddDeviceFlags(CLI::App* app, Options* options) {
  app->add_option("--devices", options->devices,
                  "Device slots, separated by commas: auto (all GPUs, or cpu*2), cpu*N, cuda, "
                  "cuda:I, cuda:I*N")
      ->type_name("LIST")
      ->capture_default_str();
  app->add_option("--cpu_threads", options->cpu_threads,
                  "Intra-op threads per CPU worker; 0: cores / CPU workers")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app->add_option("--training_share", options->training_share,
                  "Share of device time for training while inference waits too; on a CPU at least "
                  "0.04 and at most 0.5")
      ->check(Between(0.0, 0.9))
      ->capture_default_str();
  app->add_flag("--overlap_reduction", options->overlap_reduction,
                "Sum gradients between GPUs during the backward pass (experimental)");
  app->add_flag("--tf32", options->tf32, "Use TF32 for float32 products on GPUs");
  app->add_flag("--deterministic", options->deterministic,
                "Use only deterministic algorithms; operators without one fail");
}

void AddNetworkFlags(CLI::App* app, Options* options) {
  app->add_option("--listen", options->listen, "Address to listen on for gRPC and metrics")
      ->type_name("HOST")
      ->capture_default_str();
  app->add_option("--grpc_port", options->grpc_port, "Port for gRPC; 0 picks a free port")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app->add_option("--metrics_port", options->metrics_port,
                  "Port for metrics, status page and probes (HTTP); 0 picks a free port")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  auto* const refuse = app->add_flag("--refuse_compression", options->refuse_compression,
                                     "Reject compressed messages (default beyond loopback)");
  app->add_flag("--accept_compression", options->accept_compression,
                "Accept compressed messages beyond loopback; 1 MB can expand to 1 GB")
      ->excludes(refuse);
  app->add_flag("--allow_client_shared_memory", options->allow_client_shared_memory,
                "Let clients on this machine pass tensors in shared memory and GPU memory");
  app->add_flag("--allow_model_upload", options->allow_model_upload,
                "Let clients with the role admin upload versions of models, which are code");
}

void AddLimitFlags(CLI::App* app, Options* options) {
  app->add_option("--max_requests", options->max_requests,
                  "Requests in flight; more fail with RESOURCE_EXHAUSTED")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  app->add_option("--max_request_bytes", options->max_request_bytes,
                  "Bytes of all requests in flight; more fail with RESOURCE_EXHAUSTED")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 60))
      ->capture_default_str();
  app->add_option(
         "--max_client_requests", options->max_client_requests,
         "Requests in flight, and open streams, per client (identity or address); 0: unlimited")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  app->add_option("--max_client_request_bytes", options->max_client_request_bytes,
                  "Bytes of requests in flight per client; 0: unlimited")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 60))
      ->capture_default_str();
  app->add_option("--max_connection_streams", options->max_connection_streams,
                  "Concurrent calls per connection; more wait in the client")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app->add_option("--max_message_bytes", options->max_message_bytes,
                  "Bytes of a received message, after decompression; larger ones are rejected")
      ->check(CLI::Range(int{1024}, std::numeric_limits<int>::max()))
      ->capture_default_str();
  app->add_option("--max_upload_bytes", options->max_upload_bytes,
                  "Bytes of an uploaded version; larger ones fail with RESOURCE_EXHAUSTED")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 60))
      ->capture_default_str();
  app->add_option("--max_trainers", options->max_trainers,
                  "Trainers at the same time; more fail with RESOURCE_EXHAUSTED")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  app->add_option("--trainer_memory", options->trainer_memory,
                  "Bytes per device for trainers; beyond it, idle ones are saved in --data_dir and "
                  "read again when they are used (default: half of the device's memory)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 60));
}

void AddJobFlags(CLI::App* app, Options* options, double* retention_days) {
  app->add_option("--max_running_jobs", options->max_running_jobs,
                  "Jobs that run at the same time; others wait")
      ->check(CLI::Range(int64_t{1}, int64_t{64}))
      ->capture_default_str();
  app->add_option("--max_running_jobs_per_identity", options->max_running_jobs_per_identity,
                  "Jobs of one identity that run at the same time; others wait; 0: no limit")
      ->check(CLI::Range(int64_t{0}, int64_t{64}))
      ->capture_default_str();
  app->add_option("--max_queued_jobs", options->max_queued_jobs,
                  "Jobs that wait or are paused; more fail with RESOURCE_EXHAUSTED")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  app->add_option("--job_retention_days", *retention_days,
                  "Days after which records, metrics and logs of ended jobs are removed; never "
                  "their outputs")
      ->check(Between(0, 36500))
      ->capture_default_str();
}

// Throws CLI::ParseError for an argument that is no flag, with the flags that contain its name.
void CheckKnown(const CLI::App& app) {
  const std::vector<std::string> unknown = app.remaining();
  if (unknown.empty()) {
    return;
  }
  const std::string flag = unknown.front().substr(0, unknown.front().find('='));
  const std::string word = absl::StrReplaceAll(
      flag.substr(std::min(flag.find_first_not_of('-'), flag.size())), {{"-", "_"}});
  std::vector<std::string> similar;
  for (const CLI::Option* option : app.get_options()) {
    if (!word.empty() && absl::StrContains(option->get_name(), word)) {
      similar.push_back(option->get_name());
    }
  }
  std::string message = absl::StrCat("unknown flag ", flag);
  if (!similar.empty()) {
    absl::StrAppend(&message, " (did you mean ", absl::StrJoin(similar, " or "), "?)");
  }
  throw CLI::ParseError(message, CLI::ExitCodes::ExtrasError);
}

// Parses the arguments. Names an unknown flag before a required one, which may be misspelled, and a
// flag that is given more often than it may be.
void Parse(CLI::App* app, int argc, const char* const* argv) {
  try {
    app->parse(argc, argv);
  } catch (const CLI::RequiredError&) {
    CheckKnown(*app);
    throw;
  } catch (const CLI::ArgumentMismatch&) {
    for (const CLI::Option* option : app->get_options()) {
      const size_t times = option->count();
      if (times > 1 && option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw &&
          option->get_items_expected_max() == 1) {
        throw CLI::ParseError(
            absl::StrCat(option->get_name(), ": given ", times, " times (expected once)"),
            CLI::ExitCodes::ArgumentMismatch);
      }
    }
    throw;
  }
  CheckKnown(*app);
}

}  // namespace

std::optional<Options> ParseFlags(int argc, const char* const* argv, int* exit_code) {
  Options options;
  LifecycleSeconds seconds{0, 0, absl::ToDoubleSeconds(options.max_connection_idle),
                           absl::ToDoubleSeconds(options.drain_delay),
                           absl::ToDoubleSeconds(options.drain_timeout)};
  CLI::App app(kDescription, "braid-server");
  app.allow_extras();  // CheckKnown() has a better message.
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("braid-server ") + kVersion);
  AddDirectoryFlags(&app, &options);
  AddDeviceFlags(&app, &options);
  AddNetworkFlags(&app, &options);
  AddLimitFlags(&app, &options);
  double retention_days = absl::FDivDuration(options.job_retention, absl::Hours(24));
  AddJobFlags(&app, &options, &retention_days);
  AddLifecycleFlags(&app, &options, &seconds);
  double poll_seconds = absl::ToDoubleSeconds(options.repository_poll);
  AddModelFlags(&app, &options, &poll_seconds);
  AddLogFlags(&app, &options);
  AddAccessFlags(&app, &options);
  try {
    Parse(&app, argc, argv);
    if (!options.load_models.empty() && options.model_control_mode != ControlMode::kExplicit) {
      throw CLI::ValidationError("--load_model", "requires --model_control_mode=explicit");
    }
    if (options.dataset_quota > 0 && options.dataset_root.empty()) {
      throw CLI::ValidationError("--dataset_quota", "requires --dataset_root");
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
  options.job_retention = absl::Hours(24) * retention_days;
  if (seconds.max_connection_age_grace > 0) {
    options.max_connection_age_grace = absl::Seconds(seconds.max_connection_age_grace);
  }
  if (absl::StrContains(options.listen, ':') && options.listen.front() != '[') {
    options.listen = absl::StrCat("[", options.listen, "]");  // IPv6 addresses need brackets
  }
  return options;
}

}  // namespace braid
