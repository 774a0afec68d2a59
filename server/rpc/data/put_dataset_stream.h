// PutDataset: writes the files of a stream, then stores them as a dataset.
#pragma once

#include <memory>
#include <string>

#include "braid/v1/data.grpc.pb.h"
#include "server/base/task_thread.h"
#include "server/datasets/dataset_store.h"
#include "server/datasets/dataset_upload.h"
#include "server/rpc/request_stream.h"

namespace braid {

// Shared by the uploads; everything it points to outlives them.
struct PutDatasetContext {
  DatasetStore* store = nullptr;  // null: no uploads
  Metrics* metrics = nullptr;
  std::string data_root;          // relative paths of data start here
  TaskThread* files = nullptr;    // writes the files
  TaskThread* changes = nullptr;  // opens uploads and stores datasets
};

// FAILED_PRECONDITION if the server accepts no datasets.
absl::Status CheckAcceptsDatasets(const DatasetStore* store);

// Returns the path by which jobs read the dataset at `place`: relative to `data_root` if it is
// there, else absolute.
std::string DatasetPath(const std::string& place, const std::string& data_root);
// Returns the name of the dataset in `root` that has this path for jobs; another text as it is.
// Relative paths start at `data_root`.
std::string DatasetName(const std::string& path, const std::string& root,
                        const std::string& data_root);

// One call. Between two reads, a thread of the context works.
class PutDatasetStream final : public RequestStream<braid::v1::PutDatasetRequest> {
 public:
  PutDatasetStream(const PutDatasetContext& context, const RpcContext& rpc,
                   const grpc::CallbackServerContext& call, braid::v1::PutDatasetResponse* response)
      : RequestStream(rpc, call, "PutDataset"), context_(context), response_(response) {
    Start();
  }

 private:
  void OnRequest() override;
  void OnLast() override;
  // Checks and admits the received message.
  absl::Status Check();
  // Opens the upload that the first message names.
  absl::Status Open();
  // Writes the data of the received message, then reads the next one.
  void Write();
  // Stores the dataset.
  absl::Status Store();
  // Ends the call with an error of the upload itself. Removes its files if they do not fit.
  void Fail(const absl::Status& status);

  const PutDatasetContext& context_;
  braid::v1::PutDatasetResponse* const response_;

  std::string id_;                         // of the first message
  std::shared_ptr<DatasetUpload> upload_;  // null until the first message
};

}  // namespace braid
