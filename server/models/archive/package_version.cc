#include "server/models/archive/package_version.h"

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/base/torch_version.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

absl::Status Refuse(const std::string& exported_with, const absl::Status& status) {
  const std::string own = TorchRelease();
  const bool differs = status.code() == absl::StatusCode::kFailedPrecondition;
  return {status.code() == absl::StatusCode::kResourceExhausted
              ? status.code()
              : absl::StatusCode::kFailedPrecondition,
          absl::StrCat(differs ? "self-test failed: PyTorch " : "self-test cannot be run: PyTorch ",
                       own, differs ? " computes other results than " : ", exported with PyTorch ",
                       exported_with, ": ", status.message(),
                       " (export the model again with PyTorch ", own, ")")};
}

}  // namespace

absl::Status CheckPackageVersion(const std::string& path, const std::string& exported_with,
                                 absl::FunctionRef<TestedModel()> describe, c10::Device device,
                                 ModelArchive* archive) {
  const std::string theirs = TorchRelease(Excerpt(exported_with));
  if (theirs == TorchRelease()) {
    return absl::OkStatus();
  }
  if (!archive->Has(kSelfTestRecord)) {
    Log(LogModule::kModels)
        .warn(
            "{}: exported with PyTorch {} and has no self-test; this server runs PyTorch {} (run "
            "\"braid check {}\" with PyTorch {} to add one)",
            path, theirs, TorchRelease(), path, theirs);
    return absl::OkStatus();
  }
  BRAID_ASSIGN_OR_RETURN(const std::string text, archive->Read(kSelfTestRecord));
  const absl::StatusOr<SelfTest> test = SelfTest::Parse(text, describe());
  if (!test.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(kSelfTestRecord, ": ", test.status().message()));
  }
  if (const absl::Status status = test->Run(device); !status.ok()) {
    return Refuse(theirs, status);
  }
  if (const std::string computed = TorchRelease(Excerpt(test->torch_version()));
      computed != theirs) {
    Log(LogModule::kModels)
        .warn("{}: exported with PyTorch {}, but its self-test was computed with PyTorch {}", path,
              theirs, computed);
    return absl::OkStatus();
  }
  Log(LogModule::kModels)
      .info("{}: exported with PyTorch {}; this server's PyTorch {} passes its self-test", path,
            theirs, TorchRelease());
  return absl::OkStatus();
}

}  // namespace braid
