#include "server/models/inference_only/aoti_package.h"

#include <dlfcn.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "ATen/cpu/Utils.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "c10/util/Exception.h"
#include "nlohmann/json.hpp"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/base/torch_version.h"
#include "server/devices/cuda_backend.h"
#include "server/devices/worker.h"
#include "server/models/archive/model_archive.h"
#include "server/models/inference_only/aoti_interface.h"
#include "server/models/inference_only/aoti_ranges.h"
#include "server/models/inference_only/delete_unless.h"
#include "server/models/training_mode.h"
#include "server/telemetry/log.h"
#include "torch/csrc/inductor/aoti_runner/model_container_runner.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr absl::string_view kPrefix = "data/aotinductor/";

absl::Status Wrong(absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat("model.pt2 ", what));
}

// Returns the records of the package's model by their file name. They are all in one folder.
absl::StatusOr<std::map<std::string, std::string>> RecordsOf(const ModelArchive& archive) {
  std::set<std::string> models;
  std::map<std::string, std::string> records;
  for (const std::string& record : archive.records()) {
    absl::string_view rest = record;
    if (!absl::ConsumePrefix(&rest, kPrefix)) {
      continue;
    }
    const std::pair<std::string, std::string> parts = absl::StrSplit(rest, absl::MaxSplits('/', 1));
    if (parts.second.empty() || absl::StrContains(parts.second, "/") || parts.second == "." ||
        parts.second == "..") {
      return Wrong(absl::StrCat("has a record with the invalid name '", Excerpt(record), "'"));
    }
    models.insert(parts.first);
    records[parts.second] = record;
  }
  if (models.empty()) {
    return Wrong(
        "is not a supported package (expected a package of braid.export, torch.export.save or "
        "AOTInductor)");
  }
  if (models.size() > 1) {
    return Wrong(absl::StrCat("has ", models.size(), " models: ", absl::StrJoin(models, ", "),
                              " (expected one)"));
  }
  return records;
}

// Returns the name of the only record that ends with `ending`.
absl::StatusOr<std::string> Only(const std::map<std::string, std::string>& records,
                                 absl::string_view ending) {
  std::string found;
  for (const auto& [name, record] : records) {
    if (absl::EndsWith(name, ending)) {
      if (!found.empty()) {
        return Wrong(absl::StrCat("has several files ", ending, " (expected one)"));
      }
      found = name;
    }
  }
  if (found.empty()) {
    return Wrong(absl::StrCat("has no file ", ending,
                              " (compile it with torch._inductor.aoti_compile_and_package)"));
  }
  return found;
}

absl::Status WriteFile(const fs::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot unpack model.pt2: no space for ", bytes.size(), " bytes in '",
                     path.parent_path().string(), "' (set TMPDIR to another folder)"));
  }
  return absl::OkStatus();
}

// Checks that this CPU has the instruction sets that the code uses. Otherwise the code would end
// the process.
absl::Status CheckInstructions(const std::string& isa) {
  const auto has = at::cpu::get_cpu_capabilities();
  for (const absl::string_view name : absl::StrSplit(isa, ' ', absl::SkipEmpty())) {
    // LibTorch has the exporter's names in lower case, except for AVX512.
    const std::string key = name == "AVX512" ? "avx512_f" : absl::AsciiStrToLower(name);
    const auto found = has.find(key);
    if (found != has.end() && found->second.isBool() && !found->second.toBool()) {
      return Wrong(
          absl::StrCat("was compiled for CPUs with ", name,
                       ", which this CPU does not have (compile it on this machine, or set "
                       "TORCHINDUCTOR_CPP_SIMDLEN or ATEN_CPU_CAPABILITY)"));
    }
  }
  return absl::OkStatus();
}

// Checks the PyTorch release that compiled the code, which packages of braid.export record.
// Compiled code runs only with that release.
absl::Status CheckRelease(const std::string& compiled_with) {
  const std::string own = TorchRelease();
  if (compiled_with.empty() || TorchRelease(compiled_with) == own) {
    return absl::OkStatus();
  }
  return Wrong(absl::StrCat("was compiled with PyTorch ", TorchRelease(Excerpt(compiled_with)),
                            ", but this server runs PyTorch ", own,
                            " (compile it again with PyTorch ", own, ")"));
}

// Returns an error for compiled code that cannot be loaded from `folder`.
absl::Status LoadError(const std::string& folder, absl::string_view reason) {
  const std::string own = TorchRelease();
  const bool lacks_symbol = absl::StrContains(reason, "undefined symbol");
  return Wrong(absl::StrCat("cannot be loaded from '", folder, "': ", FirstLine(reason), " (",
                            lacks_symbol
                                ? absl::StrCat("compile it again with this server's PyTorch ", own)
                                : "the folder, TMPDIR, must allow execution",
                            ")"));
}

absl::Status CheckCapability(const std::string& required_text, int gpu) {
  int required = 0;
  const absl::StatusOr<CudaBackend*> backend = LoadCudaBackend();
  if (!backend.ok() || !absl::SimpleAtoi(required_text, &required)) {
    return absl::OkStatus();
  }
  const int have = (*backend)->compute_capability(gpu);
  if (have / 10 != required / 10 || have < required) {
    return Wrong(absl::StrCat("was compiled for GPUs of compute capability ", required,
                              ", but cuda:", gpu, " has ", have, " (compile it on such a GPU)"));
  }
  return absl::OkStatus();
}

// Loads libtorch.so, which compiled code links to. The server knows its path; the unpacked library
// does not.
absl::Status LoadLibTorch() {
  static void* const kLibrary = dlopen("libtorch.so", RTLD_NOW | RTLD_GLOBAL);
  return kLibrary != nullptr ? absl::OkStatus()
                             : Wrong("cannot be run: libtorch.so is not in LibTorch's folder");
}

class AotiRunner final : public PackageRunner {
 public:
  using Runner = torch::inductor::AOTIModelContainerRunner;

  AotiRunner(std::unique_ptr<Runner> runner, c10::Device device)
      : runner_(runner.release(), DeleteUnless<Runner>{[device] { return IsLost(device); }}) {}

  std::vector<at::Tensor> Run(const std::vector<at::Tensor>& inputs) override {
    return RunCompiledCode([&] { return runner_->run(inputs); });
  }

 private:
  static bool IsLost(c10::Device device) {
    const absl::StatusOr<CudaBackend*> cuda = LoadCudaBackend();
    return device.is_cuda() && cuda.ok() && (*cuda)->Lost(device.index());
  }

  const std::unique_ptr<Runner, DeleteUnless<Runner>> runner_;
};

}  // namespace

std::vector<at::Tensor> RunCompiledCode(absl::FunctionRef<std::vector<at::Tensor>()> run) {
  const int64_t out_of_memory_before = OutOfMemoryErrors();
  try {
    return run();
  } catch (const std::exception& failure) {
    if (!absl::StrContains(failure.what(), "API call failed")) {
      throw;
    }
    if (OutOfMemoryErrors() > out_of_memory_before) {
      C10_THROW_ERROR(OutOfMemoryError, "out of memory");
    }
    throw std::runtime_error(
        "the compiled code raised an error, for example because an index is out of range (the "
        "server's standard error has its message)");
  }
}

absl::StatusOr<std::shared_ptr<const InferencePackage>> AotiPackage::Open(const std::string& path) {
  std::shared_ptr<AotiPackage> package(new AotiPackage);
  BRAID_RETURN_IF_ERROR(package->Unpack(path));
  return package;
}

AotiPackage::~AotiPackage() {
  std::error_code ignored;
  if (!folder_.empty()) {
    fs::remove_all(folder_, ignored);
  }
}

absl::Status AotiPackage::Unpack(const std::string& path) {
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<ModelArchive> archive, ModelArchive::Open(path));
  BRAID_RETURN_IF_ERROR(archive->CheckContents());
  using Records = std::map<std::string, std::string>;
  BRAID_ASSIGN_OR_RETURN(const Records records, RecordsOf(*archive));
  for (const std::string& record : archive->records()) {
    if (absl::StartsWith(record, "data/weights/")) {
      return Wrong("has its weights in separate files (compile it with package_constants_in_so)");
    }
  }
  BRAID_ASSIGN_OR_RETURN(const std::string library, Only(records, ".so"));
  BRAID_ASSIGN_OR_RETURN(const std::string source, Only(records, "wrapper.cpp"));
  const std::string metadata = absl::StrCat(absl::StripSuffix(library, ".so"), "_metadata.json");
  if (!records.contains(metadata)) {
    return Wrong(absl::StrCat("has no ", metadata, ", the description of its device"));
  }
  BRAID_ASSIGN_OR_RETURN(const std::string text, archive->Read(records.at(metadata)));
  BRAID_RETURN_IF_ERROR(ReadMetadata(text));
  BRAID_ASSIGN_OR_RETURN(const std::string code, archive->Read(records.at(source)));
  BRAID_ASSIGN_OR_RETURN(interface_, ParseAotiInterface(code));
  BRAID_RETURN_IF_ERROR(CheckNoMutatedConstants(code));

  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  std::string folder = (error ? fs::path("/tmp") : temporary) / "braid-aoti-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot unpack model.pt2: '", temporary.string(), "' is not writable (set TMPDIR)"));
  }
  folder_ = folder;
  std::string sources;
  for (const auto& [name, record] : records) {
    BRAID_ASSIGN_OR_RETURN(const std::string bytes, archive->Read(record));
    if (device_ == "cpu" && absl::EndsWith(name, ".cpp")) {
      BRAID_RETURN_IF_ERROR(CheckNoParallelIndexChecks(bytes));
      absl::StrAppend(&sources, bytes);
    }
    BRAID_RETURN_IF_ERROR(WriteFile(fs::path(folder_) / name, bytes));
  }
  library_ = fs::path(folder_) / library;
  const bool unchecked = FindAotiEmbeddingRanges(code, sources, &interface_.inputs);
  BRAID_RETURN_IF_ERROR(ReadAotiMetadataRanges(text, &interface_.inputs));
  WarnAboutTrainingOperators(path, TrainingKernels(absl::StrCat(code, sources)));
  if (unchecked) {
    Log(LogModule::kModels)
        .warn(
            "{}: compiled code accepts negative indices of embeddings and counts them from the "
            "end, but PyTorch raises an error (compile with braid.export to reject them)",
            path);
  }
  return absl::OkStatus();
}

absl::Status AotiPackage::ReadMetadata(const std::string& text) {
  const json metadata = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto entry = [&](const char* key) {
    const bool there =
        metadata.is_object() && metadata.contains(key) && metadata.at(key).is_string();
    return there ? metadata.at(key).get<std::string>() : std::string();
  };
  device_ = entry("AOTI_DEVICE_KEY");
  compute_capability_ = entry("AOTI_COMPUTE_CAPABILITY");
  if (device_ != "cpu" && device_ != "cuda") {
    return Wrong(absl::StrCat("was compiled for '", device_, "' (expected 'cpu' or 'cuda')"));
  }
  BRAID_RETURN_IF_ERROR(CheckRelease(entry("BRAID_TORCH_VERSION")));
  utsname machine = {};
  const std::string required = entry("AOTI_MACHINE");
  if (uname(&machine) == 0 && !required.empty() && required != machine.machine) {
    return Wrong(
        absl::StrCat("was compiled for ", required, ", but this machine is ", machine.machine));
  }
  return device_ == "cpu" ? CheckInstructions(entry("AOTI_CPU_ISA")) : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PackageRunner>> AotiPackage::MakeRunner(c10::Device device) const {
  if (device.is_cuda() != (device_ == "cuda")) {
    return Wrong(absl::StrCat("was compiled for ", device_, " and cannot run on ", device.str(),
                              " (compile it for that device, or select another one with "
                              "instance_group in config.pbtxt)"));
  }
  if (device.is_cuda()) {
    BRAID_RETURN_IF_ERROR(CheckCapability(compute_capability_, device.index()));
  }
  // LibTorch's loader uses a static object without a lock.
  static absl::Mutex mu(absl::kConstInit);
  const absl::MutexLock lock(&mu);
  BRAID_RETURN_IF_ERROR(LoadLibTorch());
  const auto& registry = torch::inductor::getAOTIModelRunnerRegistry();
  const auto make = registry.find(device_);
  if (make == registry.end()) {
    return Wrong(absl::StrCat("was compiled for ", device_, ", but this server has no ", device_,
                              " backend"));
  }
  try {
    return std::make_unique<AotiRunner>(make->second(library_, /*num_models=*/1, device.str(),
                                                     folder_, /*run_single_threaded=*/false),
                                        device);
  } catch (const std::exception& failure) {
    return LoadError(folder_, failure.what());
  }
}

}  // namespace braid
