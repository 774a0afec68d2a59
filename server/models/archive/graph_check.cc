#include "server/models/archive/graph_check.h"

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

// Input or output of a node.
class Argument {
 public:
  static absl::StatusOr<Argument> Read(const JsonField& field) {
    BRAID_ASSIGN_OR_RETURN(const std::string kind, field.OnlyKey());
    if (!absl::StartsWith(kind, "as_")) {
      return field.Error(absl::StrCat("'", Excerpt(kind), "' is not a kind of argument"));
    }
    Argument argument(field);
    BRAID_ASSIGN_OR_RETURN(const JsonField value, field.Get(kind.c_str()));
    std::vector<JsonField> tensors;
    if (kind == "as_tensor") {
      tensors.push_back(value);
    } else if (kind == "as_tensors") {
      BRAID_ASSIGN_OR_RETURN(tensors, value.Items());
    }
    for (const JsonField& tensor : tensors) {
      BRAID_ASSIGN_OR_RETURN(const JsonField name, tensor.Get("name"));
      BRAID_ASSIGN_OR_RETURN(argument.tensors_.emplace_back(), name.String());
    }
    return argument;
  }

  const std::vector<std::string>& tensors() const { return tensors_; }
  absl::Status CheckKnown(const std::set<std::string>& known) const {
    for (const std::string& name : tensors_) {
      if (!known.contains(name)) {
        return field_.Error(absl::StrCat("'", Excerpt(name),
                                         "' is undefined (expected a value of an earlier node)"));
      }
    }
    return absl::OkStatus();
  }

 private:
  explicit Argument(const JsonField& field) : field_(field) {}

  JsonField field_;
  std::vector<std::string> tensors_;
};

absl::StatusOr<std::vector<JsonField>> ItemsOf(const JsonField& object, const char* name) {
  BRAID_ASSIGN_OR_RETURN(const JsonField list, object.Get(name));
  return list.Items();
}

absl::Status CheckCount(const JsonField& graph, const char* side, size_t arguments,
                        const JsonField& signature, const char* specs) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> declared, ItemsOf(signature, specs));
  if (arguments == declared.size()) {
    return absl::OkStatus();
  }
  return graph.Error(absl::StrCat("has ", arguments, " ", side, " (expected ", declared.size(),
                                  ", as in the signature)"));
}

}  // namespace

absl::Status CheckGraph(const JsonField& graph, const JsonField& signature) {
  std::set<std::string> known;
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> inputs, ItemsOf(graph, "inputs"));
  BRAID_RETURN_IF_ERROR(CheckCount(graph, "inputs", inputs.size(), signature, "input_specs"));
  for (const JsonField& input : inputs) {
    BRAID_ASSIGN_OR_RETURN(const Argument argument, Argument::Read(input));
    known.insert(argument.tensors().begin(), argument.tensors().end());
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> nodes, ItemsOf(graph, "nodes"));
  for (const JsonField& node : nodes) {
    BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> taken, ItemsOf(node, "inputs"));
    for (const JsonField& input : taken) {
      BRAID_ASSIGN_OR_RETURN(const JsonField field, input.Get("arg"));
      BRAID_ASSIGN_OR_RETURN(const Argument argument, Argument::Read(field));
      BRAID_RETURN_IF_ERROR(argument.CheckKnown(known));
    }
    BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> given, ItemsOf(node, "outputs"));
    for (const JsonField& output : given) {
      BRAID_ASSIGN_OR_RETURN(const Argument argument, Argument::Read(output));
      known.insert(argument.tensors().begin(), argument.tensors().end());
    }
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> outputs, ItemsOf(graph, "outputs"));
  BRAID_RETURN_IF_ERROR(CheckCount(graph, "outputs", outputs.size(), signature, "output_specs"));
  for (const JsonField& output : outputs) {
    BRAID_ASSIGN_OR_RETURN(const Argument argument, Argument::Read(output));
    BRAID_RETURN_IF_ERROR(argument.CheckKnown(known));
  }
  return absl::OkStatus();
}

}  // namespace braid
