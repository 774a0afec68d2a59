// Builds graphs in the JSON format of torch.export.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace braid {

using nlohmann::json;

inline json Named(const std::string& name) { return json{{"name", name}}; }
inline json Tensor(const std::string& name) { return json{{"as_tensor", Named(name)}}; }
inline json TensorList(const std::vector<std::string>& names) {
  json list = json::array();
  for (const std::string& name : names) {
    list.push_back(Named(name));
  }
  return json{{"as_tensors", list}};
}
inline json SymInt(const std::string& name) { return json{{"as_sym_int", {{"as_name", name}}}}; }
inline json SymFloat(const std::string& name) {
  return json{{"as_sym_float", {{"as_name", name}}}};
}
inline json SymBool(const std::string& name) { return json{{"as_sym_bool", {{"as_name", name}}}}; }
inline json Int(int64_t value) { return json{{"as_int", value}}; }
inline json Float(double value) { return json{{"as_float", value}}; }
inline json Bool(bool value) { return json{{"as_bool", value}}; }
inline json Ints(std::vector<int64_t> values) { return json{{"as_ints", std::move(values)}}; }
inline json None() { return json{{"as_none", true}}; }
inline json Subgraph(json graph) {
  return json{{"as_graph", {{"name", "body"}, {"graph", std::move(graph)}}}};
}

using NamedArguments = std::vector<std::pair<std::string, json>>;

inline json Node(const std::string& target, const NamedArguments& arguments,
                 std::vector<json> outputs) {
  json inputs = json::array();
  for (const auto& [name, argument] : arguments) {
    inputs.push_back({{"name", name}, {"arg", argument}, {"kind", 1}});
  }
  return json{{"target", target},
              {"inputs", inputs},
              {"outputs", std::move(outputs)},
              {"metadata", json::object()}};
}

inline json Aten(const std::string& name, const NamedArguments& arguments,
                 std::vector<json> outputs) {
  return Node("torch.ops.aten." + name, arguments, std::move(outputs));
}

inline json Graph(std::vector<json> inputs, std::vector<json> nodes, std::vector<json> outputs) {
  return json{{"inputs", std::move(inputs)},      {"outputs", std::move(outputs)},
              {"nodes", std::move(nodes)},        {"tensor_values", json::object()},
              {"sym_int_values", json::object()}, {"sym_bool_values", json::object()}};
}

// Program with user inputs only.
inline json ProgramOf(json graph) {
  json inputs = json::array();
  for (const json& input : graph["inputs"]) {
    inputs.push_back({{"user_input", {{"arg", input}}}});
  }
  json outputs = json::array();
  for (const json& output : graph["outputs"]) {
    outputs.push_back({{"user_output", {{"arg", output}}}});
  }
  return json{{"graph_module",
               {{"graph", std::move(graph)},
                {"signature", {{"input_specs", inputs}, {"output_specs", outputs}}}}},
              {"schema_version", {{"major", 8}, {"minor", 17}}}};
}

}  // namespace braid
