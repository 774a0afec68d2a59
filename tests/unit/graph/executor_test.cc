#include "server/graph/executor.h"

#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/json_fields.h"
#include "tests/fakes/status_matchers.h"
#include "tests/unit/graph/graph_json.h"
#include "torch/library.h"

namespace braid {
namespace {

using c10::IValue;
using ::testing::ElementsAre;
using ::testing::SizeIs;

// Checks that the storage of the operator's argument is freed after its last use.
c10::Storage* probed = nullptr;
int64_t references_left = 0;

at::Tensor CountReferences(const at::Tensor& tensor) {
  references_left = probed == nullptr ? 0 : static_cast<int64_t>(probed->use_count());
  return tensor.clone();
}

at::Tensor RunOutOfMemory(const at::Tensor& /*tensor*/, bool of_host) {
  if (of_host) {
    throw std::bad_alloc();
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, "there is none");
}

TORCH_LIBRARY(executor_test, library) {
  library.def("count_references(Tensor x) -> Tensor", CountReferences);
  library.def("run_out_of_memory(Tensor x, bool of_host) -> Tensor", RunOutOfMemory);
}

std::shared_ptr<const Program> Read(json graph) {
  const json program = ProgramOf(std::move(graph));
  auto read = Program::Read(JsonField(program, ""));
  EXPECT_THAT(read, IsOk());
  return *std::move(read);
}

std::unique_ptr<Executor> MakeExecutor(std::shared_ptr<const Program> program) {
  std::vector<at::Tensor> bound(program->inputs().size());
  return std::make_unique<Executor>(std::move(program), std::move(bound), c10::kCPU);
}

std::vector<IValue> RunGraph(json graph, std::vector<IValue> inputs) {
  return MakeExecutor(Read(std::move(graph)))->Run(std::move(inputs));
}

void ExpectEqual(const IValue& value, const at::Tensor& wanted) {
  ASSERT_TRUE(value.isTensor());
  EXPECT_TRUE(at::equal(value.toTensor(), wanted)) << value << wanted;
}

at::Tensor Rows(int64_t rows = 3, int64_t columns = 4) {
  return at::arange(rows * columns, at::kFloat).reshape({rows, columns}).sin();
}

TEST(ExecutorTest, CallsOperatorsWithDefaultsAndKeywords) {
  const json graph = Graph(
      {Tensor("x"), Tensor("w")},
      {Aten("linear.default", {{"input", Tensor("x")}, {"weight", Tensor("w")}}, {Tensor("y")}),
       // `alpha` is keyword-only in the schema. The order of the schema is kept.
       Aten("add.Tensor", {{"alpha", Int(2)}, {"other", Tensor("y")}, {"self", Tensor("y")}},
            {Tensor("z")}),
       Aten("softmax.int",
            {{"self", Tensor("z")}, {"dim", Int(1)}, {"dtype", json{{"as_scalar_type", 8}}}},
            {Tensor("s")})},
      {Tensor("s")});
  const at::Tensor x = Rows();
  const at::Tensor w = Rows(2);
  const at::Tensor y = at::linear(x, w);
  ExpectEqual(RunGraph(graph, {x, w}).front(), (y + 2 * y).softmax(1, at::kDouble));
}

TEST(ExecutorTest, ConvertsNumbersToTensors) {
  const json graph =
      Graph({Tensor("x"), SymInt("n")},
            {Aten("mul.Tensor", {{"self", Tensor("x")}, {"other", Int(3)}}, {Tensor("a")}),
             Aten("add.Tensor", {{"self", Tensor("a")}, {"other", SymInt("n")}}, {Tensor("b")}),
             Aten("div.Tensor", {{"self", Float(1)}, {"other", Tensor("b")}}, {Tensor("c")})},
            {Tensor("c")});
  const at::Tensor x = Rows().to(at::kHalf);
  const at::Tensor result = RunGraph(graph, {x, int64_t{5}}).front().toTensor();
  EXPECT_EQ(result.scalar_type(), at::kHalf);  // a number does not decide the type
  const at::Tensor b = x * 3 + 5;
  ExpectEqual(result, at::ones_like(b) / b);
}

TEST(ExecutorTest, ConvertsIntegersToFloats) {
  const json graph =
      Graph({Tensor("x"), SymInt("n")},
            {Aten("upsample_nearest1d.vec",
                  {{"input", Tensor("x")}, {"output_size", None()}, {"scale_factors", Ints({2})}},
                  {Tensor("a")}),
             Aten("normal_functional.default",
                  {{"self", Tensor("a")}, {"mean", SymInt("n")}, {"std", Int(0)}}, {Tensor("b")})},
            {Tensor("a"), Tensor("b")});
  const at::Tensor x = at::rand({1, 2, 3});
  const std::vector<IValue> results = RunGraph(graph, {x, int64_t{7}});
  ExpectEqual(results[0], x.repeat_interleave(2, 2));
  ExpectEqual(results[1], at::full({1, 2, 6}, 7.0F));
}

TEST(ExecutorTest, ComputesSizesLikePython) {
  const json graph = Graph(
      {Tensor("x")},
      {Aten("sym_size.int", {{"self", Tensor("x")}, {"dim", Int(0)}}, {SymInt("n")}),
       Node("_operator.neg", {{"a", SymInt("n")}}, {SymInt("m")}),
       Node("_operator.floordiv", {{"a", SymInt("m")}, {"b", Int(2)}}, {SymInt("q")}),
       Node("_operator.neg", {{"a", SymInt("q")}}, {SymInt("pairs")}),
       Node("_operator.truediv", {{"a", SymInt("n")}, {"b", Int(2)}}, {SymFloat("half")}),
       Node("_operator.gt", {{"a", SymInt("n")}, {"b", Int(2)}}, {SymBool("more")}),
       Aten("mul.Scalar", {{"self", Tensor("x")}, {"other", SymFloat("half")}}, {Tensor("y")}),
       Aten("view.default",
            {{"self", Tensor("y")},
             {"size", json{{"as_sym_ints", {{{"as_int", -1}}, {{"as_name", "n"}}}}}}},
            {Tensor("z")})},
      {Tensor("z"), SymInt("pairs"), SymBool("more"), None(), Int(9)});
  const std::vector<IValue> results = RunGraph(graph, {Rows()});
  ExpectEqual(results[0], (Rows() * 1.5).view({-1, 3}));
  EXPECT_EQ(results[1].toInt(), 2);
  EXPECT_TRUE(results[2].toBool());
  EXPECT_TRUE(results[3].isNone());
  EXPECT_EQ(results[4].toInt(), 9);
}

TEST(ExecutorTest, TakesAndReturnsLists) {
  const json optional = {
      {"as_optional_tensors", {{{"as_none", true}}, {{"as_tensor", Named("i")}}}}};
  const json graph = Graph(
      {Tensor("x"), Tensor("i")},
      {Aten("split.Tensor", {{"self", Tensor("x")}, {"split_size", Int(2)}, {"dim", Int(1)}},
            {TensorList({"a", "b"})}),
       Aten("cat.default", {{"tensors", TensorList({"b", "a"})}, {"dim", Int(1)}}, {Tensor("c")}),
       Aten("index.Tensor", {{"self", Tensor("c")}, {"indices", optional}}, {Tensor("d")}),
       Aten("index.Tensor", {{"self", Tensor("c")}, {"indices", TensorList({"i"})}}, {Tensor("e")}),
       Aten("sum.dim_IntList", {{"self", Tensor("e")}, {"dim", Ints({0})}, {"keepdim", Bool(true)}},
            {Tensor("f")})},
      {Tensor("d"), Tensor("f")});
  const at::Tensor x = Rows();
  const at::Tensor i = at::tensor({2, 0});
  const std::vector<IValue> results = RunGraph(graph, {x, i});
  const at::Tensor c = at::cat({x.slice(1, 2), x.slice(1, 0, 2)}, 1);
  ExpectEqual(results[0], c.index({at::indexing::Slice(), i}));
  ExpectEqual(results[1], c.index({i}).sum(0, true));
}

TEST(ExecutorTest, RepeatsOneNumberForAList) {
  const json graph = Graph(
      {Tensor("x")},
      {Aten("avg_pool2d.default", {{"self", Tensor("x")}, {"kernel_size", Int(2)}}, {Tensor("y")})},
      {Tensor("y")});
  const at::Tensor x = at::rand({1, 1, 4, 4});
  ExpectEqual(RunGraph(graph, {x}).front(), at::avg_pool2d(x, {2, 2}));
}

TEST(ExecutorTest, SkipsUnusedResults) {
  const json graph = Graph({Tensor("x")},
                           {Aten("max.dim", {{"self", Tensor("x")}, {"dim", Int(1)}},
                                 {Tensor("values"), Tensor("unused")})},
                           {Tensor("values")});
  ExpectEqual(RunGraph(graph, {Rows()}).front(), std::get<0>(Rows().max(1)));
}

TEST(ExecutorTest, FreesTensorsAtTheirLastUse) {
  const json graph = Graph({Tensor("x")},
                           {Node("torch.ops.executor_test.count_references.default",
                                 {{"x", Tensor("x")}}, {Tensor("y")}),
                            Node("torch.ops.executor_test.count_references.default",
                                 {{"x", Tensor("y")}}, {Tensor("z")})},
                           {Tensor("z")});
  at::Tensor x = Rows();
  c10::Storage storage = x.storage();
  probed = &storage;
  std::vector<IValue> inputs;
  inputs.emplace_back(std::move(x));
  RunGraph(graph, std::move(inputs));
  EXPECT_EQ(references_left, 1);  // in the second call the input has no other owner
  probed = nullptr;
}

TEST(ExecutorTest, ReturnsTensorsThatMayBeTrainedAndModified) {
  const json graph = Graph(
      {Tensor("x")}, {Aten("relu.default", {{"self", Tensor("x")}}, {Tensor("y")})}, {Tensor("y")});
  at::Tensor weight = Rows().set_requires_grad(true);
  at::Tensor y = RunGraph(graph, {weight}).front().toTensor();
  EXPECT_FALSE(y.requires_grad());
  EXPECT_FALSE(y.is_inference());
  y.add_(1);
  y.set_requires_grad(true);
  (y * 2).sum().backward();
  ExpectEqual(y.grad(), at::full_like(y, 2));
}

TEST(ExecutorTest, ReturnsValuesThatAreInMemory) {
  const json graph = Graph(
      {Tensor("x")}, {Aten("conj.default", {{"self", Tensor("x")}}, {Tensor("y")})}, {Tensor("y")});
  const at::Tensor x = at::complex(Rows(), Rows());
  const at::Tensor y = RunGraph(graph, {x}).front().toTensor();
  EXPECT_FALSE(y.is_conj());
  ExpectEqual(y, x.conj());
}

TEST(ExecutorTest, NamesTheOperatorThatFailed) {
  json node = Aten("mm.default", {{"self", Tensor("x")}, {"mat2", Tensor("x")}}, {Tensor("y")});
  node["name"] = "mm_1";
  node["metadata"] = {{"stack_trace", "File \"/m/model.py\", line 9, in forward\n    y = x @ x"}};
  const auto executor = MakeExecutor(Read(Graph({Tensor("x")}, {node}, {Tensor("y")})));
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      executor->Run({Rows()});
      ADD_FAILURE() << "multiplied";
    } catch (const c10::Error& error) {
      // Since PyTorch 2.15 its message begins with the operator's name.
      EXPECT_THAT(
          error.what_without_backtrace(),
          testing::EndsWith(
              "mat1 and mat2 shapes cannot be multiplied (3x4 and 3x4) (node 'mm_1', "
              "aten::mm(Float[3, 4], Float[3, 4]), /m/model.py, line 9, in forward: y = x @ x)"));
    }
  }
  ExpectEqual(executor->Run({at::eye(3)}).front(),
              at::eye(3));  // the failure leaves no state behind
}

TEST(ExecutorTest, PropagatesOutOfMemoryErrors) {
  const auto graph = [](bool of_host) {
    return Graph({Tensor("x")},
                 {Node("torch.ops.executor_test.run_out_of_memory.default",
                       {{"x", Tensor("x")}, {"of_host", Bool(of_host)}}, {Tensor("y")})},
                 {Tensor("y")});
  };
  EXPECT_THROW(RunGraph(graph(false), {Rows()}), c10::OutOfMemoryError);
  EXPECT_THROW(RunGraph(graph(true), {Rows()}), std::bad_alloc);
}

// The meta device stands for a GPU of the replica other than the exporter's.
TEST(ExecutorTest, CreatesTensorsOnTheReplicasDevice) {
  const json gpu = {{"as_device", {{"type", "cuda"}, {"index", 1}}}};
  const json cpu = {{"as_device", {{"type", "cpu"}, {"index", nullptr}}}};
  const auto program = Read(
      Graph({Tensor("x")},
            {Aten("zeros.default", {{"size", Ints({2})}, {"device", gpu}}, {Tensor("zeros")}),
             Aten("_to_copy.default", {{"self", Tensor("x")}, {"device", gpu}}, {Tensor("moved")}),
             Aten("arange.default", {{"end", Int(2)}, {"device", cpu}}, {Tensor("on_host")})},
            {Tensor("zeros"), Tensor("moved"), Tensor("on_host")}));
  Executor executor(program, std::vector<at::Tensor>(1), c10::kMeta);
  const std::vector<IValue> outputs = executor.Run({Rows()});
  EXPECT_TRUE(outputs[0].toTensor().is_meta());
  EXPECT_TRUE(outputs[1].toTensor().is_meta());
  EXPECT_TRUE(outputs[2].toTensor().is_cpu());
}

TEST(ExecutorTest, CountsItsInputs) {
  const json graph = Graph({Tensor("x")}, {}, {Tensor("x")});
  EXPECT_THROW(RunGraph(graph, {}), c10::Error);
  EXPECT_THROW(RunGraph(graph, {Rows(), Rows()}), c10::Error);
}

TEST(ExecutorTest, RunsOneProgramOnManyThreads) {
  const auto program = Read(
      Graph({Tensor("x")},
            {Aten("mul.Tensor", {{"self", Tensor("x")}, {"other", Tensor("x")}}, {Tensor("y")}),
             Aten("sum.dim_IntList", {{"self", Tensor("y")}, {"dim", Ints({1})}}, {Tensor("z")})},
            {Tensor("z")}));
  std::vector<std::thread> threads;
  for (int64_t t = 1; t <= 4; ++t) {
    threads.emplace_back([program, t] {
      const auto executor = MakeExecutor(program);
      const at::Tensor x = at::full({2, 3}, t, at::kFloat);
      for (int i = 0; i < 100; ++i) {
        ExpectEqual(executor->Run({x}).front(), at::full({2}, 3 * t * t, at::kFloat));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(ExecutorTest, ReportsOutputsAsSoonAsTheyAreFinal) {
  const json graph = Graph({Tensor("x")},
                           {Aten("sin.default", {{"self", Tensor("x")}}, {Tensor("a")}),
                            Aten("cos.default", {{"self", Tensor("a")}}, {Tensor("b")}),
                            Aten("tan.default", {{"self", Tensor("b")}}, {Tensor("c")})},
                           {Tensor("c"), Tensor("a"), Tensor("x"), Tensor("a")});
  std::vector<size_t> order;
  MakeExecutor(Read(graph))->Run({Rows()}, [&](size_t output, const IValue& value) {
    EXPECT_TRUE(value.isTensor());
    order.push_back(output);
  });
  EXPECT_THAT(order, ElementsAre(1, 3, 0, 2));
}

TEST(ExecutorTest, ReportsModifiedOutputsAtTheEnd) {
  const json graph =
      Graph({Tensor("x")},
            {Aten("sin.default", {{"self", Tensor("x")}}, {Tensor("a")}),
             Aten("add_.Tensor", {{"self", Tensor("a")}, {"other", Int(1)}}, {Tensor("b")}),
             Aten("cos.default", {{"self", Tensor("b")}}, {Tensor("c")})},
            {Tensor("a"), Tensor("c")});
  MakeExecutor(Read(graph))->Run({Rows()}, [&](size_t output, const IValue& value) {
    if (output == 0) {
      ExpectEqual(value, Rows().sin() + 1);
    }
  });
}

TEST(ExecutorTest, ComputesOnlyWantedOutputs) {
  const auto program =
      Read(Graph({Tensor("x")},
                 {Aten("sin.default", {{"self", Tensor("x")}}, {Tensor("a")}),
                  Aten("cos.default", {{"self", Tensor("a")}}, {Tensor("b")}),
                  Aten("rand_like.default", {{"self", Tensor("x")}}, {Tensor("noise")}),
                  Aten("tan.default", {{"self", Tensor("a")}}, {Tensor("c")})},
                 {Tensor("a"), Tensor("b"), Tensor("c")}));
  const auto selection = program->Select({false, false, true});
  EXPECT_EQ(selection, program->Select({false, false, true}));
  // Removing it would change the random numbers after it.
  ASSERT_THAT(selection->code().instructions, SizeIs(3));
  const std::vector<IValue> results = MakeExecutor(selection)->Run({Rows()});
  EXPECT_TRUE(results[0].isNone());
  EXPECT_TRUE(results[1].isNone());
  ExpectEqual(results[2], Rows().sin().tan());
  ExpectEqual(MakeExecutor(program)->Run({Rows()})[1], Rows().sin().cos());
}

json Unary(const std::string& name) {
  return Graph({Tensor("t")}, {Aten(name, {{"self", Tensor("t")}}, {Tensor("r")})}, {Tensor("r")});
}

json HigherOrder(const std::string& name, std::vector<json> arguments, std::vector<json> outputs) {
  NamedArguments named;
  for (json& argument : arguments) {
    named.emplace_back("", std::move(argument));
  }
  return Node("torch.ops.higher_order." + name, named, std::move(outputs));
}

TEST(ExecutorTest, AcceptsNumbersAsTensors) {
  const json graph =
      Graph({Tensor("x"), SymInt("n")},
            {Aten("mul.Scalar", {{"self", Tensor("x")}, {"other", SymInt("n")}}, {Tensor("y")})},
            {Tensor("y"), SymInt("n")});
  for (const IValue& number : {IValue(3), IValue(at::full({1}, 3, at::kLong))}) {
    const std::vector<IValue> results = RunGraph(graph, {Rows(), number});
    ExpectEqual(results[0], Rows() * 3);
    EXPECT_EQ(results[1], IValue(3));
  }
}

TEST(ExecutorTest, RunsOneBranchOfACondition) {
  const json node = HigherOrder("cond",
                                {Tensor("p"), Subgraph(Unary("sin.default")),
                                 Subgraph(Unary("cos.default")), TensorList({"x"})},
                                {Tensor("y")});
  const json graph = Graph({Tensor("p"), Tensor("x")}, {node}, {Tensor("y")});
  ExpectEqual(RunGraph(graph, {at::scalar_tensor(true), Rows()}).front(), Rows().sin());
  ExpectEqual(RunGraph(graph, {at::scalar_tensor(false), Rows()}).front(), Rows().cos());
}

TEST(ExecutorTest, RunsLoops) {
  const json condition =
      Graph({Tensor("i"), Tensor("t"), Tensor("n")},
            {Aten("lt.Tensor", {{"self", Tensor("i")}, {"other", Tensor("n")}}, {Tensor("less")})},
            {Tensor("less")});
  const json body =
      Graph({Tensor("i"), Tensor("t"), Tensor("n")},
            {Aten("add.Tensor", {{"self", Tensor("i")}, {"other", Int(1)}}, {Tensor("j")}),
             Aten("mul.Tensor", {{"self", Tensor("t")}, {"other", Int(2)}}, {Tensor("u")})},
            {Tensor("j"), Tensor("u")});
  const json node = HigherOrder(
      "while_loop",
      {Subgraph(condition), Subgraph(body), TensorList({"zero", "x"}), TensorList({"n"})},
      {Tensor("count"), Tensor("y")});
  const json graph =
      Graph({Tensor("zero"), Tensor("x"), Tensor("n")}, {node}, {Tensor("count"), Tensor("y")});
  for (const int64_t times : {0, 1, 5}) {
    const at::Tensor n = at::scalar_tensor(times, at::kLong);
    const std::vector<IValue> results = RunGraph(graph, {at::zeros_like(n), Rows(), n});
    ExpectEqual(results[0], n);
    ExpectEqual(results[1], Rows() * (1 << times));
  }
}

TEST(ExecutorTest, MapsOverRows) {
  const json body =
      Graph({Tensor("row"), Tensor("w")},
            {Aten("mul.Tensor", {{"self", Tensor("row")}, {"other", Tensor("w")}}, {Tensor("r")})},
            {Tensor("r")});
  const json node = HigherOrder("map_impl", {Subgraph(body), TensorList({"x"}), TensorList({"w"})},
                                {Tensor("y")});
  const json graph = Graph({Tensor("x"), Tensor("w")}, {node}, {Tensor("y")});
  const at::Tensor w = at::arange(4, at::kFloat);
  ExpectEqual(RunGraph(graph, {Rows(), w}).front(), Rows() * w);
}

TEST(ExecutorTest, RunsInlineRegions) {
  const json graph =
      Graph({Tensor("x")},
            {HigherOrder("wrap_with_set_grad_enabled",
                         {Bool(true), Subgraph(Unary("sin.default")), Tensor("x")}, {Tensor("a")}),
             HigherOrder("invoke_subgraph",
                         {Subgraph(Unary("cos.default")), json{{"as_string", "id"}}, Tensor("a")},
                         {Tensor("b")})},
            {Tensor("b")});
  ExpectEqual(RunGraph(graph, {Rows()}).front(), Rows().sin().cos());
}

TEST(ExecutorTest, RunsRegionsUnderAutocast) {
  const json body = Graph(
      {Tensor("t")},
      {Aten("matmul.default", {{"self", Tensor("t")}, {"other", Tensor("t")}}, {Tensor("r")})},
      {Tensor("r")});
  const auto graph = [&](bool enabled) {
    return Graph({Tensor("x")},
                 {HigherOrder("wrap_with_autocast",
                              {json{{"as_string", "cpu"}}, json{{"as_scalar_type", 13}},
                               Bool(enabled), None(), Subgraph(body), Tensor("x")},
                              {Tensor("y")})},
                 {Tensor("y")});
  };
  const at::Tensor x = at::rand({3, 3});
  ExpectEqual(RunGraph(graph(false), {x}).front(), at::matmul(x, x));
  const at::Tensor half = x.to(at::kBFloat16);
  ExpectEqual(RunGraph(graph(true), {x}).front(), at::matmul(half, half));
  EXPECT_EQ(RunGraph(graph(false), {x}).front().toTensor().scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace braid
