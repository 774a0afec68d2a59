#include "client/cli/progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace braid::cli {
namespace {

// How much of the average each step replaces.
constexpr double kSmoothing = 0.1;
constexpr int kMaxBar = 40;
constexpr int kMinBar = 8;

double Rate(int64_t samples, absl::Duration elapsed) {
  const double seconds = absl::ToDoubleSeconds(elapsed);
  return seconds > 0 ? static_cast<double>(samples) / seconds : 0;
}

// The step, as wide as the last one's number, so that what follows it stands still.
std::string Steps(const Progress& progress) {
  const std::string steps = absl::StrCat(progress.steps);
  return absl::StrFormat("%*d/%s", static_cast<int>(steps.size()), progress.step, steps);
}

std::string Figures(const Progress& progress) {
  return absl::StrCat(Steps(progress), "  loss ", FormatLoss(progress.loss), "  ",
                      FormatRate(progress.samples_per_second), " samples/s");
}

std::string Epoch(const Progress& progress) {
  return absl::StrCat("epoch ", progress.epoch, "/", progress.epochs);
}

}  // namespace

std::string FormatLoss(double loss) {
  const double size = std::abs(loss);
  if (size != 0 && (size < 1e-3 || size >= 1e4)) return absl::StrFormat("%.3e", loss);
  return absl::StrFormat("%.4f", loss);
}

std::string FormatRate(double samples_per_second) {
  return samples_per_second < 10 ? absl::StrFormat("%.1f", samples_per_second)
                                 : absl::StrFormat("%.0f", samples_per_second);
}

std::string FormatLine(const Progress& progress) {
  return absl::StrCat(Epoch(progress), "  step ", Figures(progress));
}

std::string FormatBar(const Progress& progress, int width) {
  const std::string left = absl::StrCat(Epoch(progress), " ");
  const std::string right = absl::StrCat(" ", Figures(progress));
  // Brackets take two columns.
  const int room = width - static_cast<int>(left.size() + right.size()) - 2;
  const int bar = std::min(room, kMaxBar);
  std::string line = left;
  if (bar >= kMinBar) {
    const auto done = static_cast<int>(bar * progress.step / std::max<int64_t>(progress.steps, 1));
    const bool full = done >= bar;
    absl::StrAppend(&line, "[", std::string(done, '='), full ? "" : ">",
                    std::string(full ? 0 : bar - done - 1, ' '), "]");
  }
  line += right;
  return line.substr(0, static_cast<size_t>(std::max(width, 0)));
}

ProgressReporter::ProgressReporter(std::ostream& out, Style style, int64_t epochs, int64_t steps,
                                   int width, absl::Time start)
    : out_(out), style_(style), width_(width), last_draw_(start), epoch_start_(start) {
  progress_.epochs = epochs;
  progress_.steps = steps;
}

void ProgressReporter::StartAfter(int64_t steps) {
  progress_.epoch = 1 + steps / progress_.steps;
  progress_.step = steps % progress_.steps;
}

void ProgressReporter::Step(std::optional<double> loss, int64_t rows, absl::Time now) {
  ++total_steps_;
  total_samples_ += rows;
  epoch_samples_ += rows;
  if (loss) {
    epoch_loss_sum_ += *loss * static_cast<double>(rows);
    epoch_loss_rows_ += rows;
    average_ += kSmoothing * (*loss - average_);
    average_weight_ += kSmoothing * (1 - average_weight_);
  }
  ++progress_.step;
  progress_.loss = average_ / average_weight_;
  progress_.samples_per_second = Rate(epoch_samples_, now - epoch_start_);
  Draw(loss, now);
  if (progress_.step == progress_.steps) EndEpoch(now);
}

void ProgressReporter::Draw(std::optional<double> loss, absl::Time now) {
  if (style_ == Style::kJson) {
    Emit({{"event", "step"},
          {"epoch", progress_.epoch},
          {"step", progress_.step},
          {"steps", progress_.steps},
          {"loss", loss ? nlohmann::ordered_json(*loss) : nlohmann::ordered_json()},
          {"samples_per_second", progress_.samples_per_second}});
    return;
  }
  const absl::Duration pause = style_ == Style::kBar ? absl::Milliseconds(100) : absl::Seconds(1);
  const bool first = total_steps_ == 1 && style_ == Style::kBar;
  if (!first && now - last_draw_ < pause) return;
  last_draw_ = now;
  if (style_ == Style::kBar) {
    // One column less than there are: a full line would wrap on some terminals.
    out_ << '\r' << FormatBar(progress_, width_ - 1) << "\x1b[K" << std::flush;
    drawn_ = true;
  } else {
    out_ << FormatLine(progress_) << std::endl;
  }
}

void ProgressReporter::EndEpoch(absl::Time now) {
  const absl::Duration elapsed = now - epoch_start_;
  mean_loss_ = epoch_loss_sum_ / static_cast<double>(epoch_loss_rows_);
  const double rate = Rate(epoch_samples_, elapsed);
  const double seconds = absl::ToDoubleSeconds(elapsed);
  Message(absl::StrCat(Epoch(progress_), "  ", progress_.steps, " steps  mean loss ",
                       FormatLoss(mean_loss_), "  ", FormatRate(rate), " samples/s  ",
                       absl::StrFormat("%.1f s", seconds)),
          {{"event", "epoch"},
           {"epoch", progress_.epoch},
           {"steps", progress_.steps},
           {"mean_loss", mean_loss_},
           {"samples_per_second", rate},
           {"seconds", seconds}});
  ++progress_.epoch;
  progress_.step = 0;
  epoch_start_ = last_draw_ = now;
  epoch_samples_ = 0;
  epoch_loss_sum_ = 0;
  epoch_loss_rows_ = 0;
}

void ProgressReporter::Message(const std::string& line, const nlohmann::ordered_json& event) {
  if (style_ == Style::kJson) {
    Emit(event);
    return;
  }
  Clear();
  out_ << line << std::endl;
}

void ProgressReporter::Clear() {
  if (drawn_) out_ << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

void ProgressReporter::Emit(const nlohmann::ordered_json& event) {
  // Bytes that are no UTF-8 are replaced: names came over the network.
  out_ << event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
}

}  // namespace braid::cli
