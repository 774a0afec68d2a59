// braid-bench-images: decodes image files on one thread, in batches, as the loader of a job does.
//
//   braid-bench-images DECODE FILE…
//
// For each line of its input, a number of seconds, decodes the files in turn for that CPU time and
// prints how many images it decoded per second of CPU time.
#include <time.h>

#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "bench/common/run_main.h"
#include "server/decode/decoder.h"

namespace braid::bench {
namespace {

constexpr size_t kBatch = 64;

double ThreadCpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::ToDoubleSeconds(absl::DurationFromTimespec(time));
}

template <typename T>
T ValueOf(absl::StatusOr<T> result) {
  if (!result.ok()) {
    throw std::runtime_error(std::string(result.status().message()));
  }
  return *std::move(result);
}

double ImagesPerSecond(const Decoder& decoder, const std::vector<std::string>& files,
                       double seconds) {
  const double start = ThreadCpuSeconds();
  int64_t images = 0;
  double spent = 0;
  while (spent < seconds) {
    std::vector<EncodedRow> rows;
    for (; rows.size() < kBatch; ++images) {
      rows.push_back({files[static_cast<size_t>(images) % files.size()], images});
    }
    ValueOf(decoder.Decode(rows, {}));
    spent = ThreadCpuSeconds() - start;
  }
  return static_cast<double>(images) / spent;
}

int Run(int argc, char** argv) {
  if (argc < 3) {
    throw std::runtime_error("usage: braid-bench-images DECODE FILE…");
  }
  const auto decoder =
      ValueOf(MakeDecoder(ValueOf(ParseDecodeSpec(argv[1], "decode")), {}, "decode"));
  std::vector<std::string> files;
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  for (double seconds = 0; std::cin >> seconds;) {
    std::cout << ImagesPerSecond(*decoder, files, seconds) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace braid::bench

int main(int argc, char** argv) {
  return braid::bench::RunMain("braid-bench-images", braid::bench::Run, argc, argv);
}
