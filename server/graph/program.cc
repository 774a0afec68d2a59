#include "server/graph/program.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/graph/compiler.h"
#include "server/graph/liveness.h"

namespace braid {
namespace {

// Minor versions add only what older readers may ignore.
constexpr int64_t kSchemaMajor = 8;

struct NamedInput {
  Program::Input input;
  std::string constant;  // name of a literal in the graph
};

absl::StatusOr<NamedInput> ReadInput(const JsonField& spec) {
  using Kind = Program::Input::Kind;
  BRAID_ASSIGN_OR_RETURN(const std::string kind, spec.OnlyKey());
  BRAID_ASSIGN_OR_RETURN(const JsonField value, spec.Get(kind.c_str()));
  NamedInput named;
  const auto read = [&](Kind of, const char* name, std::string* text) -> absl::Status {
    named.input.kind = of;
    BRAID_ASSIGN_OR_RETURN(const JsonField field, value.Get(name));
    BRAID_ASSIGN_OR_RETURN(*text, field.String());
    return absl::OkStatus();
  };
  std::string* const name = &named.input.name;
  if (kind == "parameter") {
    BRAID_RETURN_IF_ERROR(read(Kind::kParameter, "parameter_name", name));
  } else if (kind == "buffer") {
    BRAID_RETURN_IF_ERROR(read(Kind::kBuffer, "buffer_name", name));
  } else if (kind == "tensor_constant") {
    BRAID_RETURN_IF_ERROR(read(Kind::kConstant, "tensor_constant_name", name));
  } else if (kind == "constant_input") {
    BRAID_RETURN_IF_ERROR(read(Kind::kLiteral, "name", &named.constant));
  } else if (kind == "user_input") {
    BRAID_ASSIGN_OR_RETURN(const JsonField argument, value.Get("arg"));
    named.input.number = !argument.Has("as_tensor");
  } else {
    return spec.Error(absl::StrCat("'", Excerpt(kind), "' is not supported as an input"));
  }
  return named;
}

absl::Status CheckCount(const JsonField& signature, const char* specs, const char* side,
                        size_t count) {
  BRAID_ASSIGN_OR_RETURN(const JsonField field, signature.Get(specs));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> list, field.Items());
  if (list.size() != count) {
    return field.Error(
        absl::StrCat(list.size(), " entries (expected ", count, ", the number of ", side, ")"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckProgramSchema(const JsonField& program) {
  BRAID_ASSIGN_OR_RETURN(const JsonField version, program.Get("schema_version"));
  BRAID_ASSIGN_OR_RETURN(const JsonField field, version.Get("major"));
  BRAID_ASSIGN_OR_RETURN(const int64_t major, field.Integer());
  if (major != kSchemaMajor) {
    return field.Error(absl::StrCat("unsupported version ", major,
                                    " of torch.export's schema (expected ", kSchemaMajor,
                                    "): export the model with PyTorch 2.11 to 2.15"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Program>> Program::Read(const JsonField& program) {
  BRAID_RETURN_IF_ERROR(CheckProgramSchema(program));
  BRAID_ASSIGN_OR_RETURN(const JsonField module, program.Get("graph_module"));
  BRAID_ASSIGN_OR_RETURN(const JsonField graph, module.Get("graph"));
  BRAID_ASSIGN_OR_RETURN(const JsonField signature, module.Get("signature"));
  BRAID_ASSIGN_OR_RETURN(const JsonField specs, signature.Get("input_specs"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> list, specs.Items());
  std::vector<Input> inputs;
  ConstantNames constants;
  for (const JsonField& spec : list) {
    BRAID_ASSIGN_OR_RETURN(NamedInput named, ReadInput(spec));
    inputs.push_back(std::move(named.input));
    constants.push_back(std::move(named.constant));
  }
  BRAID_ASSIGN_OR_RETURN(Code code, Compile(graph, constants));
  BRAID_RETURN_IF_ERROR(CheckCount(signature, "input_specs", "inputs", code.inputs.size()));
  BRAID_RETURN_IF_ERROR(CheckCount(signature, "output_specs", "outputs", code.outputs.size()));
  return std::shared_ptr<const Program>(new Program(std::move(inputs), std::move(code)));
}

std::shared_ptr<const Program> Program::Select(const std::vector<bool>& wanted) const {
  const absl::MutexLock lock(&mu_);
  std::erase_if(selections_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const Program>& known = selections_[wanted];
  std::shared_ptr<const Program> selection = known.lock();
  if (selection == nullptr) {
    Code code = code_;
    RemoveOutputs(wanted, &code);
    selection.reset(new Program(inputs_, std::move(code)));
    known = selection;
  }
  return selection;
}

}  // namespace braid
