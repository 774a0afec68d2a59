// Program of torch.export: its code and the kinds of its inputs.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/base/json_fields.h"
#include "server/graph/code.h"

namespace braid {

// FAILED_PRECONDITION if the major schema version of `program`, an archive's models/<name>.json, is
// not supported.
absl::Status CheckProgramSchema(const JsonField& program);

// Immutable and thread-safe; shared by the replicas of a model.
class Program {
 public:
  struct Input {
    enum class Kind : uint8_t { kUser, kParameter, kBuffer, kConstant, kLiteral };
    Kind kind = Kind::kUser;
    // Name of a parameter, buffer or constant in the archive. Otherwise empty.
    std::string name;
    // True for a kUser input that is an integer, a float or a boolean.
    bool number = false;
  };

  // Compiles `program`, an archive's models/<name>.json. FAILED_PRECONDITION if its major schema
  // version is not supported, or if its graph cannot be compiled.
  static absl::StatusOr<std::shared_ptr<const Program>> Read(const JsonField& program);

  const std::vector<Input>& inputs() const { return inputs_; }
  const Code& code() const { return code_; }

  // Returns a program that computes only the `wanted` outputs; other outputs are None. Compiled
  // once and shared while in use.
  std::shared_ptr<const Program> Select(const std::vector<bool>& wanted) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Program(std::vector<Input> inputs, Code code)
      : inputs_(std::move(inputs)), code_(std::move(code)) {}

  const std::vector<Input> inputs_;
  const Code code_;

  mutable absl::Mutex mu_;
  mutable std::map<std::vector<bool>, std::weak_ptr<const Program>> selections_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace braid
