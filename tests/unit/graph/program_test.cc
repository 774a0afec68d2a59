#include "server/graph/program.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/unit/graph/graph_json.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

absl::Status ReadProgram(const json& program) {
  return Program::Read(JsonField(program, "")).status();
}

json Sine() {
  return Graph({Tensor("x")}, {Aten("sin.default", {{"self", Tensor("x")}}, {Tensor("y")})},
               {Tensor("y")});
}

// Returns the program with `change` at `pointer`.
json Changed(const std::string& pointer, json change) {
  json program = ProgramOf(Sine());
  program[json::json_pointer(pointer)] = std::move(change);
  return program;
}

void ExpectRefused(const json& program, const std::string& words) {
  const absl::Status status = ReadProgram(program);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << words;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

void ExpectNodeRefused(const json& node, const std::string& words) {
  ExpectRefused(ProgramOf(Graph({Tensor("x"), SymInt("n")}, {node}, {Tensor("y")})), words);
}

TEST(ProgramTest, ReadsProgramsOfTorchExport) {
  EXPECT_THAT(ReadProgram(ProgramOf(Sine())), IsOk());
}

TEST(ProgramTest, RejectsOtherMajorVersions) {
  ExpectRefused(
      Changed("/schema_version/major", 9),
      "schema_version.major: unsupported version 9 of torch.export's schema (expected 8)");
  ExpectRefused(Changed("/schema_version", nullptr), "schema_version");
  EXPECT_THAT(ReadProgram(Changed("/schema_version/minor", 99)), IsOk());
}

TEST(ProgramTest, NamesOperatorsThatDoNotExist) {
  ExpectNodeRefused(Aten("sinus.default", {{"self", Tensor("x")}}, {Tensor("y")}),
                    "nodes[0].target: unknown operator 'aten::sinus'");
  ExpectNodeRefused(Aten("sin.Tensor", {{"self", Tensor("x")}}, {Tensor("y")}), "aten::sin.Tensor");
  ExpectNodeRefused(Node("torch.ops.mine.op.default", {{"self", Tensor("x")}}, {Tensor("y")}),
                    "unknown operator 'mine::op'");
  ExpectNodeRefused(Node("_operator.matmul", {{"a", Tensor("x")}}, {Tensor("y")}),
                    "unknown function '_operator.matmul'");
  for (const char* target : {"", ".", "..", "torch.ops.", "torch.ops.aten", "torch.ops..x"}) {
    ExpectNodeRefused(Node(target, {}, {Tensor("y")}), "unknown");
  }
  ExpectNodeRefused(Node("torch.ops.higher_order.scan", {}, {Tensor("y")}),
                    "operator torch.ops.higher_order.scan is not supported");
}

TEST(ProgramTest, RejectsOperatorsWithEffectsOnTheServer) {
  ExpectNodeRefused(Aten("from_file.default", {}, {Tensor("y")}), "not allowed");
  ExpectNodeRefused(Aten("_print.default", {{"s", {{"as_string", "hello"}}}}, {}), "not allowed");
}

TEST(ProgramTest, NamesTheSourceLine) {
  json node = Aten("sinus.default", {{"self", Tensor("x")}}, {Tensor("y")});
  node["metadata"]["stack_trace"] = "File \"/m/model.py\", line 9, in forward\n    y = sinus(x)";
  ExpectNodeRefused(node, "[/m/model.py, line 9, in forward: y = sinus(x)]");
}

TEST(ProgramTest, RejectsValuesThatAreNotDefinedBefore) {
  ExpectNodeRefused(Aten("sin.default", {{"self", Tensor("y")}}, {Tensor("y")}),
                    "nodes[0].inputs[0].arg.as_tensor: 'y' is undefined");
  ExpectNodeRefused(Aten("sin.default", {{"self", Tensor("x")}}, {Tensor("x")}),
                    "'x' is defined twice");
  ExpectRefused(Changed("/graph_module/graph/outputs/0", Tensor("z")), "'z' is undefined");
}

TEST(ProgramTest, FitsArgumentsToTheSchema) {
  ExpectNodeRefused(Aten("sin.default", {}, {Tensor("y")}), "aten::sin: missing argument 'self'");
  ExpectNodeRefused(Aten("sin.default", {{"input", Tensor("x")}}, {Tensor("y")}),
                    "aten::sin has no argument 'input'");
  ExpectNodeRefused(
      Aten("sin.default", {{"self", Tensor("x")}, {"self", Tensor("x")}}, {Tensor("y")}),
      "duplicate argument 'self' of aten::sin");
  const auto reshape = [](json size) {
    return Aten("view.default", {{"self", Tensor("x")}, {"size", std::move(size)}}, {Tensor("y")});
  };
  for (const json& wrong :
       std::vector<json>{Int(1), Tensor("x"), json{{"as_floats", {1.5}}}, json{{"as_string", "1"}},
                         None(), TensorList({"x"}), json{{"as_sym_ints", {{{"as_name", "x"}}}}}}) {
    ExpectNodeRefused(reshape(wrong), "argument 'size' of aten::view");
  }
  for (const json& wrong :
       std::vector<json>{json{{"as_string", "1"}}, json{{"as_device", {{"type", "cpu"}}}},
                         json{{"as_custom_obj", Named("x")}}, json{{"as_operator", "x"}},
                         TensorList({"x"}), json{{"tensor", 1}}, json::object(), json(7)}) {
    ExpectNodeRefused(Aten("sin.default", {{"self", wrong}}, {Tensor("y")}), "nodes[0].inputs[0]");
  }
}

TEST(ProgramTest, RejectsTypesThatTheSchemaDoesNotNumber) {
  const auto cast = [](int64_t type) {
    return Aten("_to_copy.default", {{"self", Tensor("x")}, {"dtype", {{"as_scalar_type", type}}}},
                {Tensor("y")});
  };
  for (const int64_t wrong : {-1, 0, 14, 27, 99}) {
    ExpectNodeRefused(cast(wrong), "unknown type code");
  }
  for (const char* kind : {"dtype", "layout", "memory_format"}) {
    for (const int64_t wrong : {-1, 999}) {
      ExpectNodeRefused(
          Aten("_to_copy.default", {{"self", Tensor("x")}, {kind, Int(wrong)}}, {Tensor("y")}),
          absl::StrCat("argument '", kind, "' of aten::_to_copy"));
    }
  }
  ExpectNodeRefused(
      Aten("_to_copy.default",
           {{"self", Tensor("x")}, {"device", {{"as_device", {{"type", "tpu"}}}}}}, {Tensor("y")}),
      "unknown device 'tpu'");
}

TEST(ProgramTest, FitsResultsToTheSchema) {
  ExpectNodeRefused(Aten("sin.default", {{"self", Tensor("x")}}, {Tensor("y"), Tensor("z")}),
                    "aten::sin has 2 outputs (expected 1)");
  ExpectNodeRefused(Aten("sin.default", {{"self", Tensor("x")}}, {SymInt("y")}),
                    "wrong result type");
  ExpectNodeRefused(Aten("sin.default", {{"self", Tensor("x")}}, {TensorList({"y"})}),
                    "wrong result type");
  ExpectNodeRefused(
      Aten("split.Tensor", {{"self", Tensor("x")}, {"split_size", Int(1)}}, {Tensor("y")}),
      "wrong result type");
}

TEST(ProgramTest, RejectsArithmeticOfTensors) {
  ExpectNodeRefused(Node("_operator.add", {{"a", Tensor("x")}, {"b", Int(1)}}, {SymInt("m")}),
                    "wrong type of argument of _operator.add");
  ExpectNodeRefused(Node("_operator.add", {{"a", SymInt("n")}}, {SymInt("m")}),
                    "has 1 arguments (expected 2)");
}

TEST(ProgramTest, RejectsNumbersOfAnotherTypeThanTheOperatorReturns) {
  const NamedArguments size = {{"self", Tensor("x")}, {"dim", Int(0)}};
  ExpectNodeRefused(Aten("sym_size.int", size, {SymFloat("y")}), "wrong result type");
  ExpectNodeRefused(Aten("sym_size.int", size, {SymBool("y")}), "wrong result type");
  ExpectNodeRefused(Node("_operator.add", {{"a", Int(1)}, {"b", Int(2)}}, {SymFloat("y")}),
                    "outputs[0]: int (expected float)");
}

TEST(ProgramTest, ComputesConstantsWhenItIsRead) {
  const auto constant = [](const std::string& target, int64_t a, int64_t b) {
    return Node(target, {{"a", Int(a)}, {"b", Int(b)}}, {SymInt("y")});
  };
  ExpectNodeRefused(constant("_operator.floordiv", 1, 0),
                    "nodes[0]: _operator.floordiv: division of a size by zero");
  ExpectNodeRefused(constant("_operator.mul", INT64_MAX, 2), "needs more than 64 bits");
  json divisor = constant("_operator.sub", 1, 1);
  const json quotient =
      Node("_operator.floordiv", {{"a", SymInt("n")}, {"b", SymInt("y")}}, {SymInt("z")});
  EXPECT_THAT(ReadProgram(ProgramOf(Graph({SymInt("n")}, {divisor, quotient}, {SymInt("z")}))),
              IsOk());
  const json constants = Node("_operator.mod", {{"a", Int(5)}, {"b", SymInt("y")}}, {SymInt("z")});
  ExpectRefused(ProgramOf(Graph({SymInt("n")}, {divisor, constants}, {SymInt("z")})),
                "nodes[1]: _operator.mod: division");
}

TEST(ProgramTest, RejectsDamagedGraphs) {
  for (const char* field :
       {"/graph_module", "/graph_module/graph", "/graph_module/signature",
        "/graph_module/graph/nodes", "/graph_module/graph/nodes/0",
        "/graph_module/graph/nodes/0/target", "/graph_module/graph/nodes/0/inputs",
        "/graph_module/graph/nodes/0/inputs/0", "/graph_module/graph/nodes/0/inputs/0/arg",
        "/graph_module/graph/nodes/0/outputs", "/graph_module/graph/nodes/0/outputs/0",
        "/graph_module/graph/inputs", "/graph_module/graph/inputs/0", "/graph_module/graph/outputs",
        "/graph_module/graph/outputs/0", "/graph_module/signature/input_specs",
        "/graph_module/signature/input_specs/0"}) {
    for (const json& wrong : std::vector<json>{nullptr, 1, "1e+308"}) {
      EXPECT_EQ(ReadProgram(Changed(field, wrong)).code(), absl::StatusCode::kFailedPrecondition)
          << field;
    }
  }
  ExpectRefused(Changed("/graph_module/signature/input_specs", json::array()),
                "expected 1, the number of inputs");
  ExpectRefused(Changed("/graph_module/signature/output_specs", json::array()),
                "expected 1, the number of outputs");
}

TEST(ProgramTest, RejectsBodiesThatDoNotFit) {
  const auto cond = [](const json& body, json operands) {
    return Node(
        "torch.ops.higher_order.cond",
        {{"", Tensor("x")}, {"", Subgraph(body)}, {"", Subgraph(body)}, {"", std::move(operands)}},
        {Tensor("y")});
  };
  ExpectNodeRefused(cond(Sine(), TensorList({"x", "x"})), "graph: 2 inputs (expected 1)");
  json two = Sine();
  two["outputs"].push_back(Tensor("x"));
  ExpectNodeRefused(cond(two, TensorList({"x"})), "graph: 2 outputs (expected 1)");
  ExpectNodeRefused(Node("torch.ops.higher_order.cond", {{"", Tensor("x")}}, {Tensor("y")}),
                    "wrong arguments");
}

TEST(ProgramTest, RejectsBodiesOfOtherTypes) {
  const json number =
      Graph({Tensor("x")},
            {Aten("sym_size.int", {{"self", Tensor("x")}, {"dim", Int(0)}}, {SymInt("size")})},
            {SymInt("size")});
  const auto with_body = [](const std::string& name, json body, json operand, json output) {
    NamedArguments arguments = {{"", std::move(body)}, {"", std::move(operand)}};
    if (name != "map_impl") {
      arguments.insert(arguments.begin(), {"", Bool(true)});
    }
    return Node("torch.ops.higher_order." + name, arguments, {std::move(output)});
  };
  for (const char* name : {"map_impl", "wrap_with_set_grad_enabled"}) {
    ExpectNodeRefused(with_body(name, Subgraph(number), TensorList({"x"}), Tensor("y")),
                      "outputs[0]: int (expected tensor)");
    ExpectNodeRefused(
        with_body(name, Subgraph(Sine()), json{{"as_sym_ints", {{{"as_name", "n"}}}}}, Tensor("y")),
        "[0]: int (expected tensor)");
  }
  ExpectNodeRefused(with_body("map_impl", Subgraph(number), TensorList({"x"}), SymInt("y")),
                    "outputs[0]: int (expected tensor)");
  ExpectNodeRefused(
      Node("torch.ops.higher_order.cond",
           {{"", None()}, {"", Subgraph(Sine())}, {"", Subgraph(Sine())}, {"", TensorList({"x"})}},
           {Tensor("y")}),
      "cond has no predicate");
}

TEST(ProgramTest, RejectsRegionsWithoutOperands) {
  const json nothing = Graph({}, {}, {});
  ExpectNodeRefused(
      Node("torch.ops.higher_order.map_impl", {{"", Subgraph(nothing)}, {"", TensorList({})}}, {}),
      "map_impl has no operands (expected at least 1)");
  ExpectNodeRefused(
      Node("torch.ops.higher_order.cond",
           {{"", Subgraph(nothing)}, {"", Subgraph(nothing)}, {"", TensorList({})}}, {}),
      "cond has no predicate (expected a tensor or a number)");
}

TEST(ProgramTest, RejectsAutocastToUnknownTypes) {
  for (const int64_t wrong : {-1, 999}) {
    ExpectNodeRefused(Node("torch.ops.higher_order.wrap_with_autocast",
                           {{"", {{"as_string", "cpu"}}},
                            {"", Int(wrong)},
                            {"", Bool(true)},
                            {"", None()},
                            {"", Subgraph(Sine())},
                            {"", Tensor("x")}},
                           {Tensor("y")}),
                      "autocast to unknown type");
  }
}

TEST(ProgramTest, RejectsGraphsThatAreNestedTooDeep) {
  json body = Sine();
  for (int depth = 0; depth < 40; ++depth) {
    body =
        Graph({Tensor("x")},
              {Node("torch.ops.higher_order.wrap_with_set_grad_enabled",
                    {{"", Bool(false)}, {"", Subgraph(body)}, {"", Tensor("x")}}, {Tensor("y")})},
              {Tensor("y")});
  }
  ExpectRefused(ProgramOf(body), "nested too deep");
}

TEST(ProgramTest, ReadsKindsOfInputs) {
  json program = ProgramOf(
      Graph({Tensor("p"), Tensor("x"), Int(3)},
            {Aten("mul.Tensor", {{"self", Tensor("x")}, {"other", Tensor("k")}}, {Tensor("y")})},
            {Tensor("y")}));
  json& specs = program["graph_module"]["signature"]["input_specs"];
  specs[0] = {{"parameter", {{"arg", Named("p")}, {"parameter_name", "linear.weight"}}}};
  specs[2] = {{"constant_input", {{"name", "k"}, {"value", Int(3)}}}};
  const auto read = Program::Read(JsonField(program, ""));
  ASSERT_THAT(read, IsOk());
  const auto& inputs = (*read)->inputs();
  EXPECT_EQ(inputs[0].kind, Program::Input::Kind::kParameter);
  EXPECT_EQ(inputs[0].name, "linear.weight");
  EXPECT_EQ(inputs[1].kind, Program::Input::Kind::kUser);
  EXPECT_EQ(inputs[2].kind, Program::Input::Kind::kLiteral);
  specs[2] = {{"custom_obj", {{"arg", Named("k")}}}};
  ExpectRefused(program, "'custom_obj' is not supported as an input");
}

}  // namespace
}  // namespace braid
