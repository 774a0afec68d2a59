// Event file of TensorBoard: records with checksums, each a protocol buffer `Event`.
//
// A record is the length (8 bytes), its masked CRC-32C (4 bytes), the Event, and the masked CRC-32C
// of the Event (4 bytes), in little-endian order. Formats: tensorflow/core/lib/io/record_writer.h,
// tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto. Only the fields that
// scalars need are encoded, by hand: the engine has no protobuf.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/tracking/tail_file.h"
#include "server/tracking/tracked_values.h"

namespace braid {

// Returns the CRC-32C (Castagnoli) of `bytes`.
uint32_t Crc32c(absl::string_view bytes);

// Thread-compatible. Records stay in memory until Flush().
class EventFile {
 public:
  // Creates a file in `folder`, after those that are there in the order of names, in which
  // TensorBoard reads them. Errors as TailFile.
  absl::Status Open(const std::string& folder, absl::Time now);
  // Makes readers forget values of `step` and later, in all files, that were written before.
  void AddRestart(int64_t step, absl::Time now);
  // No-op without values.
  void Add(const TrackedValues& values);
  // Writes the records. After an error, up to 1 MiB of them are kept for the next call. Requires
  // Open().
  absl::Status Flush();

 private:
  std::optional<TailFile> file_;
  std::string records_;      // not written yet
  size_t header_bytes_ = 0;  // of the first record
  int64_t size_ = 0;         // bytes written
};

}  // namespace braid
