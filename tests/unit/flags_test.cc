#include "server/flags.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class FlagsTest : public ::testing::Test {
 protected:
  // Parses `flags` behind a --model_repository that is there.
  std::optional<Options> Parse(std::vector<std::string> flags) {
    flags.insert(flags.begin(), "--model_repository=" + dir_.path().string());
    return ParseOnly(flags);
  }
  std::optional<Options> ParseOnly(const std::vector<std::string>& flags) {
    std::vector<const char*> argv = {"braid-server"};
    for (const std::string& flag : flags) {
      argv.push_back(flag.c_str());
    }
    exit_code_ = -1;
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    auto options = ParseFlags(static_cast<int>(argv.size()), argv.data(), &exit_code_);
    stdout_ = ::testing::internal::GetCapturedStdout();
    stderr_ = ::testing::internal::GetCapturedStderr();
    return options;
  }

  const TempDir dir_;
  int exit_code_ = -1;
  std::string stdout_;
  std::string stderr_;
};

TEST_F(FlagsTest, UnknownFlagNamesSimilarOnes) {
  EXPECT_FALSE(Parse({"--port", "18461"}));
  EXPECT_EQ(exit_code_, 2);
  EXPECT_EQ(stderr_,
            "braid-server: unknown flag --port (did you mean --grpc_port or --metrics_port or "
            "--health_port?) (--help lists the flags)\n");
  EXPECT_FALSE(Parse({"--warp=9"}));
  EXPECT_EQ(stderr_, "braid-server: unknown flag --warp (--help lists the flags)\n");
}

TEST_F(FlagsTest, UnknownFlagIsNamedBeforeARequiredOne) {
  EXPECT_FALSE(ParseOnly({"--model_repositry=models"}));
  EXPECT_EQ(exit_code_, 2);
  EXPECT_EQ(stderr_, "braid-server: unknown flag --model_repositry (--help lists the flags)\n");
}

TEST_F(FlagsTest, FlagGivenTwice) {
  EXPECT_FALSE(Parse({"--max_running_jobs=1", "--max_running_jobs=2"}));
  EXPECT_EQ(exit_code_, 2);
  EXPECT_EQ(stderr_,
            "braid-server: --max_running_jobs: given 2 times (expected once) (--help lists the "
            "flags)\n");
}

TEST_F(FlagsTest, Defaults) {
  const std::optional<Options> options = Parse({});
  ASSERT_TRUE(options);
  EXPECT_EQ(options->model_repository, dir_.path());
  EXPECT_EQ(options->data_dir, "");
  EXPECT_EQ(options->devices, "auto");
  EXPECT_EQ(options->listen, "127.0.0.1");
  EXPECT_EQ(options->grpc_port, 8001);
  EXPECT_EQ(options->metrics_port, 8002);
  EXPECT_EQ(options->health_port, std::nullopt);
  EXPECT_EQ(options->ready_file, "");
  EXPECT_FALSE(options->allow_client_shared_memory);
  EXPECT_FALSE(options->allow_model_upload);
  EXPECT_EQ(options->max_connection_age, absl::InfiniteDuration());
  EXPECT_EQ(options->drain_delay, absl::ZeroDuration());
  EXPECT_EQ(options->drain_timeout, absl::Seconds(30));
}

TEST_F(FlagsTest, ParsesEveryFlag) {
  const std::optional<Options> options =
      Parse({"--data_dir=d", "--devices=cpu*2,cuda:0*2", "--cpu_threads=3", "--training_share=0.5",
             "--listen=0.0.0.0", "--grpc_port=0", "--metrics_port=9", "--ready_file=r",
             "--max_requests=7", "--max_request_bytes=8589934592", "--drain_timeout=1.5",
             "--drain_delay=0.25", "--health_port=0", "--max_connection_age=2.5"});
  ASSERT_TRUE(options) << stderr_;
  EXPECT_EQ(options->data_dir, "d");
  EXPECT_EQ(options->devices, "cpu*2,cuda:0*2");
  EXPECT_EQ(options->cpu_threads, 3);
  EXPECT_EQ(options->training_share, 0.5);
  EXPECT_EQ(options->listen, "0.0.0.0");
  EXPECT_EQ(options->grpc_port, 0);
  EXPECT_EQ(options->metrics_port, 9);
  EXPECT_EQ(options->health_port, std::optional<int>(0));
  EXPECT_EQ(options->ready_file, "r");
  EXPECT_EQ(options->max_requests, 7);
  EXPECT_EQ(options->max_request_bytes, size_t{8} << 30);
  EXPECT_EQ(options->max_connection_age, absl::Milliseconds(2500));
  EXPECT_EQ(options->drain_delay, absl::Milliseconds(250));
  EXPECT_EQ(options->drain_timeout, absl::Milliseconds(1500));
}

TEST_F(FlagsTest, ParsesModelControlFlags) {
  EXPECT_EQ(Parse({})->model_control_mode, ControlMode::kNone);
  EXPECT_EQ(Parse({})->repository_poll, absl::Seconds(15));
  const std::optional<Options> options =
      Parse({"--model_control_mode=explicit", "--load_model=a", "--load_model=*",
             "--operator_libraries=a.so,b.so"});
  ASSERT_TRUE(options) << stderr_;
  EXPECT_EQ(options->model_control_mode, ControlMode::kExplicit);
  EXPECT_EQ(options->load_models, (std::vector<std::string>{"a", "*"}));
  EXPECT_EQ(options->operator_libraries, (std::vector<std::string>{"a.so", "b.so"}));
  const auto poll = Parse({"--model_control_mode=poll", "--repository_poll_seconds=0.5"});
  ASSERT_TRUE(poll) << stderr_;
  EXPECT_EQ(poll->model_control_mode, ControlMode::kPoll);
  EXPECT_EQ(poll->repository_poll, absl::Milliseconds(500));
}

TEST_F(FlagsTest, ParsesAccessFlags) {
  const auto none = Parse({});
  EXPECT_EQ(none->tls_cert + none->tls_key + none->tls_client_ca, "");
  EXPECT_EQ(none->auth_tokens + none->auth_certificates, "");
  EXPECT_FALSE(none->allow_unauthenticated);
  EXPECT_FALSE(none->tls_terminated_in_front);
  const auto options =
      Parse({"--tls_cert=a", "--tls_key=b", "--tls_client_ca=c", "--auth_tokens=d",
             "--auth_certificates=e", "--allow_unauthenticated", "--tls_terminated_in_front"});
  ASSERT_TRUE(options) << stderr_;
  EXPECT_EQ(options->tls_cert, "a");
  EXPECT_EQ(options->tls_key, "b");
  EXPECT_EQ(options->tls_client_ca, "c");
  EXPECT_EQ(options->auth_tokens, "d");
  EXPECT_EQ(options->auth_certificates, "e");
  EXPECT_TRUE(options->allow_unauthenticated);
  EXPECT_TRUE(options->tls_terminated_in_front);
}

TEST_F(FlagsTest, ParsesLimitFlags) {
  const auto none = Parse({});
  EXPECT_EQ(none->max_client_requests, 0);
  EXPECT_EQ(none->max_client_request_bytes, 0);
  EXPECT_EQ(none->max_connection_streams, 1024);
  EXPECT_EQ(none->max_connection_age, absl::InfiniteDuration());
  EXPECT_EQ(none->max_connection_age_grace, absl::InfiniteDuration());
  EXPECT_EQ(none->max_connection_idle, absl::Minutes(30));
  EXPECT_FALSE(none->refuse_compression);
  EXPECT_FALSE(none->accept_compression);
  EXPECT_TRUE(Parse({"--accept_compression"})->accept_compression);
  EXPECT_FALSE(Parse({"--accept_compression", "--refuse_compression"}));
  const auto options = Parse({"--max_client_requests=3", "--max_client_request_bytes=4",
                              "--max_connection_streams=5", "--max_connection_age=1.5",
                              "--max_connection_age_grace=0.5", "--max_connection_idle=2.5",
                              "--refuse_compression", "--model_allowlist=f"});
  ASSERT_TRUE(options) << stderr_;
  EXPECT_EQ(options->max_client_requests, 3);
  EXPECT_EQ(options->max_client_request_bytes, 4);
  EXPECT_EQ(options->max_connection_streams, 5);
  EXPECT_EQ(options->max_connection_age, absl::Milliseconds(1500));
  EXPECT_EQ(options->max_connection_age_grace, absl::Milliseconds(500));
  EXPECT_EQ(options->max_connection_idle, absl::Milliseconds(2500));
  EXPECT_EQ(Parse({"--max_connection_idle=0"})->max_connection_idle, absl::InfiniteDuration());
  EXPECT_TRUE(options->refuse_compression);
  EXPECT_EQ(options->model_allowlist, "f");
}

TEST_F(FlagsTest, RequiresRelatedFlagsTogether) {
  for (const auto& [flags, name] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--tls_cert=a"}, "--tls_cert: requires both --tls_cert and --tls_key"},
           {{"--tls_key=a"}, "--tls_key: requires both --tls_cert and --tls_key"},
           {{"--tls_client_ca=a"}, "--tls_client_ca: requires --tls_cert and --tls_key"},
           {{"--auth_certificates=a", "--tls_cert=a", "--tls_key=a"}, "requires --tls_client_ca"},
           {{"--dataset_quota=1"}, "--dataset_quota: requires --dataset_root"}}) {
    EXPECT_FALSE(Parse(flags));
    EXPECT_EQ(exit_code_, 2);
    EXPECT_THAT(stderr_, HasSubstr(name));
  }
}

TEST_F(FlagsTest, PutsBracketsAroundIpv6Addresses) {
  EXPECT_EQ(Parse({"--listen=::1"})->listen, "[::1]");
  EXPECT_EQ(Parse({"--listen=[::1]"})->listen, "[::1]");
}

TEST_F(FlagsTest, AnInvalidFlagIsNamedOnOneLineWithExitCode2) {
  for (const std::string flag : {"--grpc_port=65536",
                                 "--grpc_port=-1",
                                 "--grpc_port=x",
                                 "--metrics_port=1.5",
                                 "--cpu_threads=-1",
                                 "--training_share=1",
                                 "--max_requests=0",
                                 "--max_request_bytes=0",
                                 "--max_request_bytes=-5",
                                 "--drain_timeout=-1",
                                 "--drain_delay=-1",
                                 "--drain_delay=nan",
                                 "--drain_timeout=inf",
                                 "--training_share=nan",
                                 "--max_connection_age=-1",
                                 "--max_connection_idle=-1",
                                 "--max_connection_idle=inf",
                                 "--health_port=65536",
                                 "--load_model=a",
                                 "--model_control_mode=some",
                                 "--repository_poll_seconds=0",
                                 "--no_such_flag=1"}) {
    EXPECT_FALSE(Parse({flag})) << flag;
    EXPECT_EQ(exit_code_, 2) << flag;
    const std::string name = flag.substr(0, flag.find('='));
    EXPECT_THAT(stderr_, AllOf(HasSubstr("braid-server: "), HasSubstr(name))) << flag;
    EXPECT_EQ(stderr_.find('\n'), stderr_.size() - 1) << stderr_;
  }
}

TEST_F(FlagsTest, TheRepositoryIsRequiredAndMustExist) {
  EXPECT_FALSE(ParseOnly({}));
  EXPECT_EQ(exit_code_, 2);
  EXPECT_THAT(stderr_, HasSubstr("--model_repository"));
  EXPECT_FALSE(ParseOnly({"--model_repository=/no/such/folder"}));
  EXPECT_EQ(exit_code_, 2);
  EXPECT_THAT(stderr_, HasSubstr("/no/such/folder"));
}

TEST_F(FlagsTest, HelpListsEveryFlagWithExitCode0) {
  EXPECT_FALSE(ParseOnly({"--help"}));
  EXPECT_EQ(exit_code_, 0);
  for (const char* name :
       {"--model_repository", "--data_dir", "--devices", "--cpu_threads", "--training_share",
        "--listen", "--grpc_port", "--metrics_port", "--ready_file", "--max_requests",
        "--max_request_bytes", "--drain_delay", "--drain_timeout", "--health_port",
        "--max_connection_age", "--max_connection_idle", "--version"}) {
    EXPECT_THAT(stdout_, HasSubstr(name));
  }
}

TEST_F(FlagsTest, VersionHasExitCode0) {
  EXPECT_FALSE(ParseOnly({"--version"}));
  EXPECT_EQ(exit_code_, 0);
  EXPECT_THAT(stdout_, HasSubstr("braid-server " BRAID_VERSION));
}

}  // namespace
}  // namespace braid
