// Requests and replies of braid.v1.DataService.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "braid/v1/data.pb.h"
#include "server/data/open_data_source.h"
#include "server/datasets/manifest.h"

namespace braid {

// Each fills the response. They block on the disk. Errors name the field of the request.
absl::Status DescribeDataset(const DataDirectories& directories,
                             const braid::v1::GetDatasetRequest& request,
                             braid::v1::GetDatasetResponse* response);
absl::Status ListDatasets(const DataDirectories& directories,
                          const braid::v1::ListDatasetsRequest& request,
                          braid::v1::ListDatasetsResponse* response);
absl::Status PreviewDataset(const DataDirectories& directories,
                            const braid::v1::PreviewDatasetRequest& request,
                            braid::v1::PreviewDatasetResponse* response);

// INVALID_ARGUMENT naming the field if a checksum is not 64 hexadecimal digits. DatasetStore checks
// the rest.
absl::StatusOr<DatasetManifest> ReadManifest(const braid::v1::StartDatasetUploadRequest& request);

}  // namespace braid
