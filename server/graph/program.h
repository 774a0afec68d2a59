// A program that torch.export wrote: its code, and what its inputs are.
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

// FAILED_PRECONDITION if `program`, an archive's models/<name>.json, is of an unsupported major
// version of torch.export's schema.
absl::Status CheckProgramSchema(const JsonField& program);

// Immutable and thread-safe; the replicas of a model share one.
class Program {
 public:
  struct Input {
    enum class Kind : uint8_t { kUser, kParameter, kBuffer, kConstant, kLiteral };
    Kind kind = Kind::kUser;
    // Name of a parameter, buffer or constant in the archive. Else empty.
    std::string name;
    // A user's input that is an integer, a float or a boolean.
    bool number = false;
  };

  // `program`: what the archive has in models/<name>.json. FAILED_PRECONDITION if it is of an
  // unsupported major version of the schema, or if its graph cannot be compiled.
  static absl::StatusOr<std::shared_ptr<const Program>> Read(const JsonField& program);

  const std::vector<Input>& inputs() const { return inputs_; }
  const Code& code() const { return code_; }

  // The program without what only the outputs that are not `wanted` need: they become None. It is
  // made once and shared while somebody has it.
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
