// `braid models`: what the server's repository holds.
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/elements.h"
#include "client/cli/table.h"

namespace braid::cli {
namespace {

using Json = nlohmann::ordered_json;
using TensorMetadata = inference::ModelMetadataResponse::TensorMetadata;

int ListModels(client::Client& client, bool json) {
  auto models = client.Models();
  if (!models.ok()) return Fail(models.status());
  std::vector<std::vector<std::string>> rows = {{"model", "version", "state", "reason"}};
  Json list = Json::array();
  for (const auto& model : *models) {
    rows.push_back({model.name(), model.version(), model.state(), model.reason()});
    list.push_back({{"model", model.name()},
                    {"version", model.version()},
                    {"state", model.state()},
                    {"reason", model.reason()}});
  }
  if (json) {
    PrintJson({{"models", std::move(list)}});
  } else {
    std::cout << FormatTable(rows);
  }
  return kOk;
}

Json ToJson(const google::protobuf::RepeatedPtrField<TensorMetadata>& tensors) {
  Json list = Json::array();
  for (const TensorMetadata& tensor : tensors) {
    list.push_back({{"name", tensor.name()},
                    {"datatype", tensor.datatype()},
                    {"shape", std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end())}});
  }
  return list;
}

void AddRows(const char* kind, const google::protobuf::RepeatedPtrField<TensorMetadata>& tensors,
             std::vector<std::vector<std::string>>* rows) {
  for (const TensorMetadata& tensor : tensors) {
    const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
    rows->push_back({kind, tensor.name(), tensor.datatype(), FormatShape(shape)});
  }
}

int ShowModel(client::Client& client, const std::string& name, bool json) {
  auto model = client.ModelMetadata(name);
  if (!model.ok()) return Fail(model.status());
  if (json) {
    Json shown;
    shown["model"] = model->name();
    shown["versions"] =
        std::vector<std::string>(model->versions().begin(), model->versions().end());
    shown["platform"] = model->platform();
    shown["inputs"] = ToJson(model->inputs());
    shown["outputs"] = ToJson(model->outputs());
    PrintJson(shown);
    return kOk;
  }
  std::vector<std::vector<std::string>> rows = {{"", "name", "datatype", "shape"}};
  AddRows("input", model->inputs(), &rows);
  AddRows("output", model->outputs(), &rows);
  std::cout << Printable(absl::StrCat("model ", model->name(),
                                      model->versions_size() == 1 ? ", version " : ", versions ",
                                      absl::StrJoin(model->versions(), ", "), ", platform ",
                                      model->platform()))
            << "\n"
            << FormatTable(rows);
  return kOk;
}

}  // namespace

Command AddModels(CLI::App& braid) {
  CLI::App* app = braid.add_subcommand(
      "models", "List the models of the server, or show one model's inputs and outputs");
  auto model = std::make_shared<std::string>();
  app->add_option("MODEL", *model, "Show this model")->type_name("");
  return {app, [model](const GlobalOptions& global) {
            auto client = Connect(global);
            if (!client.ok()) return Fail(client.status());
            return model->empty() ? ListModels(**client, global.json)
                                  : ShowModel(**client, *model, global.json);
          }};
}

}  // namespace braid::cli
