#include "server/jobs/inference_job.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status.h"
#include "server/base/task_thread.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"
#include "tests/unit/jobs/fake_context.h"

namespace braid {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// Rows that are their own numbers.
class FakeInput final : public InputSource {
 public:
  FakeInput(int64_t rows, std::string name) : rows_(rows), name_(std::move(name)) {}

  bool reverses = false;   // several requests may have the rows
  int64_t change_at = -1;  // row whose read finds that the data has changed; -1: none
  absl::Status error;      // of that read

  absl::StatusOr<int64_t> Rows(JobContext* /*context*/, std::string* identity) override {
    if (!identity->empty() && *identity != name_) {
      return absl::FailedPreconditionError(absl::StrCat("expected data ", *identity));
    }
    *identity = name_;
    return rows_;
  }
  absl::StatusOr<std::unique_ptr<RowStream>> Open(int64_t first_row) override {
    return std::make_unique<Stream>(this, first_row);
  }
  absl::Status CheckUnchanged() override {
    return changed_ ? absl::FailedPreconditionError("data has changed") : absl::OkStatus();
  }

 private:
  class Stream final : public RowStream {
   public:
    Stream(FakeInput* input, int64_t next) : input_(input), end_(input->rows_), next_(next) {}
    absl::StatusOr<std::optional<InputRows>> Next(int64_t max_rows, int64_t window_rows) override {
      if (next_ == end_) {
        return std::nullopt;
      }
      if (input_->change_at >= 0 && next_ >= input_->change_at) {
        input_->changed_ = true;
        BRAID_RETURN_IF_ERROR(input_->error);
      }
      InputRows rows;
      rows.first = next_;
      rows.count = std::min(input_->reverses ? window_rows : max_rows, end_ - next_);
      if (rows.count > max_rows) {
        rows.requests = Reversed(rows, max_rows);
      } else {
        rows.requests = {{{MakeRows("x", rows.count, static_cast<double>(next_))}}};
      }
      next_ += rows.count;
      return rows;
    }

   private:
    // Returns requests for the rows, from the last one to the first.
    static std::vector<InputRows::Request> Reversed(const InputRows& rows, int64_t max_rows) {
      std::vector<InputRows::Request> requests;
      for (int64_t end = rows.count; end > 0; end -= max_rows) {
        std::vector<float> values;
        std::vector<int64_t> positions;
        for (int64_t row = end - 1; row >= std::max<int64_t>(0, end - max_rows); --row) {
          positions.push_back(row);
          values.push_back(static_cast<float>(rows.first + row));
        }
        const auto count = static_cast<int64_t>(values.size());
        requests.push_back({{MakeHost<float>("x", {count, 1}, values)}, positions});
      }
      return requests;
    }

    FakeInput* const input_;
    const int64_t end_;
    int64_t next_;
  };

  const int64_t rows_;
  const std::string name_;
  bool changed_ = false;
};

// Returns its input, on a thread of its own.
class FakeModel final : public JobModel {
 public:
  explicit FakeModel(int64_t newest) : newest_(newest) {}

  absl::StatusOr<int64_t> Open(int64_t version) override {
    if (version != 0 && version != newest_) {
      return absl::NotFoundError(absl::StrCat("version ", version, " is not served"));
    }
    version_ = version == 0 ? newest_ : version;
    return version_;
  }
  int64_t request_rows() const override { return 3; }
  size_t max_in_flight() const override { return 2; }
  bool independent_rows() const override { return independent; }
  void Infer(std::vector<HostTensor> inputs, int64_t rows, Done done) override {
    thread_.Post([this, inputs = std::move(inputs), rows, done = std::move(done)]() mutable {
      if (ValuesOf<float>(inputs[0])[0] == fail_at) {
        done(absl::InvalidArgumentError("inputs[0]: NaN"));
        return;
      }
      InferenceResult result;
      result.version = version_;
      result.outputs = {{"y", DataType::kFp32, {rows, 1}, inputs[0].bytes, {inputs[0]}}};
      if (variable_output) {
        HostTensor wide = MakeHost<float>("wide", {rows, rows},
                                          std::vector<float>(static_cast<size_t>(rows * rows)));
        result.outputs.push_back({"wide", DataType::kFp32, wide.shape, wide.bytes, {wide}});
      }
      done(std::move(result));
    });
  }

  float fail_at = -1;
  bool independent = true;
  bool variable_output = false;  // has an output of shape [rows, rows]

 private:
  const int64_t newest_;
  int64_t version_ = 0;
  TaskThread thread_ = TaskThread("model");
};

struct FakeFiles {
  std::vector<float> parts;  // complete
  std::vector<float> output;
  std::vector<int64_t> versions;
  std::vector<int64_t> writes;  // rows of each
  bool closed = false;
  int failing_uploads = 0;
};

class FakeOutput final : public JobOutput {
 public:
  FakeOutput(FakeFiles* files, int64_t part_rows) : files_(files), part_rows_(part_rows) {}

  absl::StatusOr<int64_t> Open() override {
    return files_->closed && files_->parts.empty()
               ? absl::StatusOr<int64_t>(absl::AlreadyExistsError("output.path: exists"))
               : Size(files_->parts);
  }
  absl::StatusOr<int64_t> Write(const InputRows& rows, const InferenceResult& result) override {
    EXPECT_EQ(rows.first, Size(files_->parts) + Size(part_));
    const std::vector<float> values = ValuesOf<float>(result.outputs.at(0));
    part_.insert(part_.end(), values.begin(), values.end());
    files_->versions.push_back(result.version);
    files_->writes.push_back(rows.count);
    return Size(part_) >= part_rows_ ? FinishPart() : Size(files_->parts);
  }
  absl::StatusOr<int64_t> FinishPart() override {
    files_->parts.insert(files_->parts.end(), part_.begin(), part_.end());
    part_.clear();
    return Size(files_->parts);
  }
  absl::StatusOr<std::string> Close() override {
    EXPECT_TRUE(part_.empty());
    files_->output = files_->parts;
    files_->closed = true;
    return "/outputs/scores.npy";
  }
  absl::StatusOr<std::string> Upload() override {
    if (files_->failing_uploads > 0) {
      --files_->failing_uploads;
      return absl::FailedPreconditionError("output.path: access denied");
    }
    return "s3://bucket/scores.npy";
  }
  void Discard() override { files_->parts.clear(); }

 private:
  static int64_t Size(const std::vector<float>& list) { return static_cast<int64_t>(list.size()); }

  FakeFiles* const files_;
  const int64_t part_rows_;
  std::vector<float> part_;
};

class InferenceJobTest : public ::testing::Test {
 protected:
  // Runs a new job, as after a start of the server.
  absl::StatusOr<JobResult> RunJob() {
    auto model = std::make_unique<FakeModel>(newest_);
    model->fail_at = fail_at_;
    model->independent = independent_;
    model->variable_output = variable_output_;
    auto input = std::make_unique<FakeInput>(rows_, data_);
    input->reverses = reverses_;
    input->change_at = change_at_;
    input->error = read_error_;
    JobRecord record;
    record.progress = context_.saved;
    record.memory = context_.memory;
    job_ = std::make_unique<InferenceJob>(0, std::move(model), std::move(input),
                                          std::make_unique<FakeOutput>(&files_, 5), record);
    return job_->Run(&context_);
  }
  std::vector<float> AllRows() const {
    std::vector<float> rows;
    for (int64_t row = 0; row < rows_; ++row) {
      rows.push_back(static_cast<float>(row));
    }
    return rows;
  }

  int64_t newest_ = 4;
  int64_t rows_ = 20;
  std::string data_ = "a";
  float fail_at_ = -1;
  bool reverses_ = false;
  bool independent_ = true;
  bool variable_output_ = false;
  int64_t change_at_ = -1;
  absl::Status read_error_;
  FakeFiles files_;
  FakeContext context_;
  std::unique_ptr<InferenceJob> job_;
};

TEST_F(InferenceJobTest, WritesEachRowOnceInOrder) {
  BRAID_ASSERT_OK_AND_ASSIGN(const JobResult result, RunJob());
  EXPECT_EQ(result.rows, 20);
  EXPECT_EQ(result.output, "s3://bucket/scores.npy");
  EXPECT_EQ(files_.output, AllRows());
  EXPECT_EQ(context_.progress.rows, 20);
  EXPECT_EQ(context_.progress.total_rows, 20);
  EXPECT_EQ(context_.saved.durable_rows, 20);
}

TEST_F(InferenceJobTest, RestoresTheOrderOfRowsInSeveralRequests) {
  reverses_ = true;
  rows_ = 50;
  ASSERT_THAT(RunJob(), IsOk());
  EXPECT_EQ(files_.output, AllRows());
  EXPECT_THAT(files_.versions, ::testing::Each(4));
  // The job has to see the result of a request before it knows how many rows it may keep.
  EXPECT_EQ(files_.writes.front(), 3);
  EXPECT_GT(files_.writes.back(), 3);
}

TEST_F(InferenceJobTest, KeepsNeighboursTogetherIfRowsDependOnEachOther) {
  reverses_ = true;
  independent_ = false;
  ASSERT_THAT(RunJob(), IsOk());
  EXPECT_EQ(files_.output, AllRows());
  EXPECT_THAT(files_.writes, ::testing::Each(::testing::Le(3)));
}

TEST_F(InferenceJobTest, OutputsThatAreNotWrittenMayHaveAnyShapes) {
  reverses_ = true;
  variable_output_ = true;
  rows_ = 50;
  ASSERT_THAT(RunJob(), IsOk());
  EXPECT_EQ(files_.output, AllRows());
}

TEST_F(InferenceJobTest, ErrorOfOneOfSeveralRequestsNamesTheRowsOfAll) {
  reverses_ = true;
  rows_ = 50;
  fail_at_ = 49;
  EXPECT_THAT(RunJob(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::MatchesRegex("some of the rows [0-9]+ to 49: inputs.0.: NaN")));
}

TEST_F(InferenceJobTest, StopDoesNotWaitForTheRequestsOfAllRows) {
  reverses_ = true;
  rows_ = 1000;
  int reads = 0;
  context_.decide_stop = [&](const JobProgress&) {
    return ++reads > 20 ? JobStop::kDrain : JobStop::kNone;
  };
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("stopped at row ")));
  EXPECT_EQ(static_cast<int64_t>(files_.parts.size()), context_.saved.rows);
  context_.decide_stop = nullptr;
  ASSERT_THAT(RunJob(), IsOk());
  EXPECT_EQ(files_.output, AllRows());
}

TEST_F(InferenceJobTest, ErrorNamesTheRows) {
  fail_at_ = 6;
  EXPECT_THAT(RunJob(),
              StatusIs(absl::StatusCode::kInvalidArgument, "rows 6 to 8: inputs[0]: NaN"));
}

TEST_F(InferenceJobTest, DrainCompletesThePartAndTheNextRunContinues) {
  context_.decide_stop = [](const JobProgress& progress) {
    return progress.rows >= 3 ? JobStop::kDrain : JobStop::kNone;
  };
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("stopped at row ")));
  EXPECT_EQ(context_.saved.durable_rows, context_.saved.rows);
  EXPECT_EQ(static_cast<int64_t>(files_.parts.size()), context_.saved.rows);
  EXPECT_LT(context_.saved.rows, 20);
  context_.decide_stop = nullptr;
  ASSERT_THAT(RunJob(), IsOk());
  EXPECT_EQ(files_.output, AllRows());
}

TEST_F(InferenceJobTest, PauseAndPreemptionCompleteThePart) {
  int64_t stop_at = 3;
  for (const JobStop stop : {JobStop::kPause, JobStop::kPreempt}) {
    context_.decide_stop = [stop, stop_at](const JobProgress& progress) {
      return progress.rows >= stop_at ? stop : JobStop::kNone;
    };
    EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("stopped at row ")));
    EXPECT_EQ(context_.saved.durable_rows, context_.saved.rows);
    stop_at = context_.saved.rows + 1;
  }
  context_.decide_stop = nullptr;
  ASSERT_THAT(RunJob(), IsOk());
  EXPECT_EQ(files_.output, AllRows());
}

TEST_F(InferenceJobTest, TriesAFailedUploadAgain) {
  files_.failing_uploads = 3;
  BRAID_ASSERT_OK_AND_ASSIGN(const JobResult result, RunJob());
  EXPECT_EQ(result.output, "s3://bucket/scores.npy");
  EXPECT_EQ(context_.waited, absl::Seconds(1 + 2 + 4));
  EXPECT_THAT(context_.log,
              Contains("output.path: access denied; the job tries again for about 10 minutes"));
  job_->CleanUp();
  EXPECT_TRUE(files_.parts.empty());
}

TEST_F(InferenceJobTest, KeepsAnOutputThatCannotBeUploaded) {
  files_.failing_uploads = 1000;
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 "output.path: access denied; the output is in "
                                 "'/outputs/scores.npy' on the server until the job's record is "
                                 "removed"));
  EXPECT_GT(context_.waited, absl::Minutes(9));
  EXPECT_LT(context_.waited, absl::Minutes(11));
  job_->CleanUp();
  EXPECT_EQ(files_.parts, AllRows());
}

TEST_F(InferenceJobTest, StopsBetweenUploadsAndContinuesThere) {
  files_.failing_uploads = 1000;
  context_.decide_stop = [this](const JobProgress&) {
    return context_.waited > absl::Seconds(3) ? JobStop::kPause : JobStop::kNone;
  };
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kCancelled, "stopped at row 20"));
  context_.decide_stop = nullptr;
  files_.failing_uploads = 0;
  BRAID_ASSERT_OK_AND_ASSIGN(const JobResult result, RunJob());
  EXPECT_EQ(result.output, "s3://bucket/scores.npy");
  EXPECT_EQ(files_.output, AllRows());
}

TEST_F(InferenceJobTest, VersionStaysTheSameOverRestarts) {
  context_.decide_stop = [](const JobProgress& progress) {
    return progress.rows >= 3 ? JobStop::kDrain : JobStop::kNone;
  };
  EXPECT_FALSE(RunJob().ok());
  context_.decide_stop = nullptr;
  newest_ = 5;
  EXPECT_THAT(RunJob(),
              StatusIs(absl::StatusCode::kNotFound,
                       "cannot continue with the version of the rows so far: version 4 is "
                       "not served"));
  newest_ = 4;
  ASSERT_THAT(RunJob(), IsOk());
  EXPECT_THAT(files_.versions, ::testing::Each(4));
}

TEST_F(InferenceJobTest, DoesNotContinueWithOtherData) {
  context_.decide_stop = [](const JobProgress&) { return JobStop::kDrain; };
  EXPECT_FALSE(RunJob().ok());
  context_.decide_stop = nullptr;
  data_ = "b";
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kFailedPrecondition, "expected data a"));
  data_ = "a";
  EXPECT_THAT(RunJob(), IsOk());
}

TEST_F(InferenceJobTest, DataThatChangesWhileItIsReadGivesNoOutput) {
  change_at_ = 18;  // by the last read
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kFailedPrecondition, "data has changed"));
  EXPECT_FALSE(files_.closed);
  EXPECT_LT(files_.parts.size(), 20u);
}

TEST_F(InferenceJobTest, ChangeOfTheDataExplainsAnErrorOfARead) {
  change_at_ = 6;
  read_error_ = absl::NotFoundError("row 6: file does not exist");
  EXPECT_THAT(RunJob(), StatusIs(absl::StatusCode::kFailedPrecondition, "data has changed"));
}

TEST_F(InferenceJobTest, CancelLeavesNoParts) {
  context_.decide_stop = [](const JobProgress& progress) {
    return progress.rows >= 6 ? JobStop::kCancel : JobStop::kNone;
  };
  EXPECT_FALSE(RunJob().ok());
  EXPECT_FALSE(files_.parts.empty());
  job_->CleanUp();
  EXPECT_TRUE(files_.parts.empty());
}

// The server crashes after the output is complete, before the end of the job is recorded.
TEST_F(InferenceJobTest, RunningADoneJobAgainReturnsTheSame) {
  BRAID_ASSERT_OK_AND_ASSIGN(const JobResult first, RunJob());
  BRAID_ASSERT_OK_AND_ASSIGN(const JobResult second, RunJob());
  EXPECT_EQ(first, second);
  job_->CleanUp();
  BRAID_ASSERT_OK_AND_ASSIGN(const JobResult third, RunJob());
  EXPECT_EQ(first, third);
  EXPECT_EQ(files_.output, AllRows());
}

TEST_F(InferenceJobTest, CrashesChangeNothing) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    reverses_ = seed % 2 == 1;
    rows_ = reverses_ ? 60 : 20;
    files_ = FakeFiles();
    context_ = FakeContext();
    std::mt19937 random(seed);
    absl::StatusOr<JobResult> result = absl::UnknownError("not run");
    for (int crashes = 0; crashes < 100 && !result.ok(); ++crashes) {
      // A crash leaves the process: what the job returns does not matter.
      fail_at_ = static_cast<float>(random() % static_cast<unsigned>(rows_ * 3 / 2));
      context_.save_error = random() % 4 == 0 ? absl::AbortedError("crash") : absl::OkStatus();
      result = RunJob();
    }
    ASSERT_THAT(result, IsOk()) << seed;
    EXPECT_EQ(files_.output, AllRows()) << seed;
  }
}

}  // namespace
}  // namespace braid
