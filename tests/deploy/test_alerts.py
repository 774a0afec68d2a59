"""Tests with promtool when each alert fires, and its text."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from deploy.rendering import ROOT

PROMTOOL = ROOT / "build/tools/promtool"
PROMETHEUS = ROOT / "deploy/prometheus"
RUNBOOK = ROOT / "docs/runbook.md"
RULES = {
    rule["alert"]: rule
    for path in sorted(PROMETHEUS.glob("*.rules.yaml"))
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
}
SERVER = 'job="braid",instance="a:1"'
GPU = f'{SERVER},gpu="0",uuid="GPU-a"'
BUILD = {f"braid_build_info{{{SERVER},version='1'}}": "1x200"}
LATER, LONG = "20m", "80m"


@dataclass
class Case:
    """Input series in promtool's notation, with a sample every `every`, and the alert `at` a time.

    fires: labels of the alert in addition to the server's; None if it must not fire.
    """

    alert: str
    series: dict[str, str]
    at: str
    fires: dict[str, str] | None = None
    summary: str = ""
    description: str = ""
    server: bool = True
    every: str = "1m"
    id: str = field(init=False)

    def __post_init__(self) -> None:
        self.id = f"{self.alert}-{'quiet' if self.fires is None else 'fires'}"


def gpu(metric: str, values: str, labels: str = "") -> dict[str, str]:
    return {f"braid_gpu_{metric}{{{GPU}{labels}}}": values}


def requests(ok: str, bad: str, code: str) -> dict[str, str]:
    name = f'braid_requests_total{{{SERVER},method="ModelInfer",model="m",code='
    return {f'{name}"OK"}}': ok, f'{name}"{code}"}}': bad}


def durations(fast: str, slow: str, method: str = "ModelInfer") -> dict[str, str]:
    name = f'braid_request_duration_seconds_bucket{{{SERVER},method="{method}",model="m",le='
    return {f'{name}"1"}}': fast, f'{name}"2"}}': slow, f'{name}"+Inf"}}': slow}


def trainer(metric: str, values: str, labels: str = "") -> dict[str, str]:
    return {f'braid_{metric}{{{SERVER},trainer="t"{labels}}}': values}


def versions(outcome: str, values: str) -> dict[str, str]:
    return {f'braid_version_writes_total{{{SERVER},model="m",outcome="{outcome}"}}': values}


def job(metric: str, values: str) -> dict[str, str]:
    return {f'braid_job_{metric}{{{SERVER},job_id="nightly",kind="train",model="m"}}': values}


def job_states(queued: str, running: str) -> dict[str, str]:
    return {
        f'braid_jobs{{{SERVER},kind="{kind}",state="{state}"}}': values
        for kind, state, values in (
            ("train", "queued", queued),
            ("train", "running", running),
            ("infer", "queued", "0x200"),
            ("infer", "running", "0x200"),
        )
    }


def ended_jobs(failed: str, succeeded: str) -> dict[str, str]:
    name = f'braid_job_duration_seconds_count{{{SERVER},kind="infer",state='
    return {f'{name}"failed"}}': failed, f'{name}"succeeded"}}': succeeded}


UP, READY = f"up{{{SERVER}}}", f"braid_model_ready{{{SERVER},model='m',version='1'}}"
START = f"process_start_time_seconds{{{SERVER}}}"
OPEN, MAY_OPEN = f"process_open_fds{{{SERVER}}}", f"process_max_fds{{{SERVER}}}"
QUEUE = f"braid_queue_rows{{{SERVER},model='m'}}"
DENIED = f"braid_access_denied_total{{{SERVER},reason='bad_credentials'}}"
HEALTHY = f"braid_device_healthy{{{SERVER},device='cuda:0'}}"
LOST_DEVICE = (
    "Its CUDA context was lost within the last ten minutes. "
    "Only a restart of the server restores it."
)
# Four losses, half an hour apart. Each time the container ends after four scrapes, and a new one
# follows a minute later.
LOSSES = "1x39 " + "0 0 0 0 stale _x3 1x111 " * 4
FAILED = f"braid_trainers{{{SERVER},state='failed'}}"
WRITTEN = "checkpoint_last_written_timestamp_seconds"
SENSOR = ',sensor="braid_gpu_power_watts"'
OF_GPU = {"gpu": "0", "uuid": "GPU-a"}
OF_TRAINER = {"trainer": "t"}
PROGRESS = "last_progress_timestamp_seconds"
OF_JOB = {"job_id": "nightly", "kind": "train", "model": "m"}
FAILURES = f"braid_job_failures_total{{{SERVER},kind='train',code='NOT_FOUND'}}"
OF_FAILURE = {"kind": "train", "code": "NOT_FOUND"}

CASES = [
    Case("BraidServerDown", {**BUILD, UP: "1x4 0x200"}, LATER, {},
         "Braid server a:1 is down", "Prometheus could not scrape it for two minutes."),
    Case("BraidServerDown", {**BUILD, UP: "1x4 0 1x200"}, LATER),
    # The target was never a Braid server.
    Case("BraidServerDown", {UP: "0x200"}, LATER),
    Case("BraidAbsent", {UP: "0x200"}, LATER, {},
         "There is no Braid server", "Prometheus has not scraped a Braid server for ten minutes.",
         server=False),
    Case("BraidAbsent", BUILD, LATER),
    Case("BraidServesNoModel", {**BUILD, READY: "0x200"}, LATER, {},
         "Braid server a:1 serves no model",
         "It runs, but no model has been ready for ten minutes."),
    Case("BraidServesNoModel", {**BUILD, READY: "1x200"}, LATER),
    Case("BraidRestarts", {**BUILD, START: "1x5 2x5 3x5 4x200"}, LATER, {},
         "Braid server a:1 restarts repeatedly", "It restarted 3 times in the last hour."),
    Case("BraidRestarts", {**BUILD, START: "1x5 2x200"}, LATER),
    # Not a Braid server.
    Case("BraidRestarts", {START: "1x5 2x5 3x5 4x200"}, LATER),
    Case("BraidFileDescriptors", {**BUILD, OPEN: "90x200", MAY_OPEN: "100x200"}, LATER, {},
         "Braid server a:1 is running out of file descriptors",
         "90% of its limit are in use."),
    Case("BraidFileDescriptors", {**BUILD, OPEN: "70x200", MAY_OPEN: "100x200"}, LATER),
    Case("BraidFaults", requests("0+80x200", "0+20x200", "INTERNAL"), LATER, {},
         "Requests fail on Braid server a:1",
         "20% of the requests of the last five minutes ended with a server error."),
    Case("BraidFaults", requests("0+80x200", "0+20x200", "INVALID_ARGUMENT"), LATER),
    Case("BraidFaults", requests("0+999x200", "0+1x200", "INTERNAL"), LATER),
    Case("BraidOverloaded", requests("0+80x200", "0+20x200", "RESOURCE_EXHAUSTED"), LATER, {},
         "Braid server a:1 is overloaded",
         "20% of the requests of the last five minutes were rejected or exceeded their deadline."),
    Case("BraidOverloaded", requests("0+99x200", "0+1x200", "RESOURCE_EXHAUSTED"), LATER),
    Case("BraidSlowInference", durations("0+50x200", "0+100x200"), LATER, {"model": "m"},
         "Inference of m is slow on Braid server a:1",
         "The p99 latency is 1.98s."),
    Case("BraidSlowInference", durations("0+100x200", "0+100x200"), LATER),
    # Only streamed requests.
    Case("BraidSlowInference", durations("0+50x200", "0+100x200", "ModelStreamInfer"), LATER,
         {"model": "m"}, "Inference of m is slow on Braid server a:1",
         "The p99 latency is 1.98s."),
    Case("BraidSlowInference", durations("0+100x200", "0+100x200", "ModelStreamInfer"), LATER),
    # Unary and streamed requests together: one in three is slow.
    Case("BraidSlowInference",
         {**durations("0+100x200", "0+100x200"),
          **durations("0x200", "0+50x200", "ModelStreamInfer")}, LATER,
         {"model": "m"}, "Inference of m is slow on Braid server a:1",
         "The p99 latency is 1.97s."),
    # Training operations do not count.
    Case("BraidSlowInference", durations("0x200", "0+100x200", "Step"), LATER),
    Case("BraidQueueGrows", {QUEUE: "10+10x200"}, LATER, {"model": "m"},
         "The queue of m grows on Braid server a:1",
         "It has 100 more rows than ten minutes ago."),
    Case("BraidQueueGrows", {QUEUE: "500 510 500 505 500x200"}, LATER),
    Case("BraidQueueGrows", {QUEUE: "0x10 10 20 0 30 40 0 50 60 0 70 80x0"}, LATER),
    Case("BraidBadCredentials", {DENIED: "0+60x200"}, LATER, {"reason": "bad_credentials"},
         "Calls with invalid credentials to Braid server a:1",
         "1 calls per second for five minutes."),
    Case("BraidBadCredentials", {DENIED: "0+1x200"}, LATER),
    Case("BraidDeviceLost", {HEALTHY: "1x5 0x200"}, LATER, {"device": "cuda:0"},
         "Braid server a:1 has lost its device cuda:0",
         LOST_DEVICE),
    Case("BraidDeviceLost", {HEALTHY: "1x200"}, LATER),
    *(case for loss in (10, 40, 70, 100) for case in (
        Case("BraidDeviceLost", {HEALTHY: LOSSES}, f"{loss - 1}m", every="15s"),
        *(Case("BraidDeviceLost", {HEALTHY: LOSSES}, at, {"device": "cuda:0"},
               "Braid server a:1 has lost its device cuda:0",
               LOST_DEVICE, every="15s")
          for at in (f"{loss}m", f"{loss}m30s", f"{loss + 1}m", f"{loss + 9}m")),
        Case("BraidDeviceLost", {HEALTHY: LOSSES}, f"{loss + 15}m", every="15s"))),
    Case("BraidGpuXid", gpu("xid_errors_total", "_x15 1x200", ',xid="79"'), LATER,
         {**OF_GPU, "xid": "79"}, "GPU 0 of a:1 reports XID 79",
         "The driver reported a critical error on GPU-a."),
    # Another error with a known number.
    Case("BraidGpuXid", gpu("xid_errors_total", "1x60 2x200", ',xid="79"'), "65m",
         {**OF_GPU, "xid": "79"}, "GPU 0 of a:1 reports XID 79",
         "The driver reported a critical error on GPU-a."),
    Case("BraidGpuXid", gpu("xid_errors_total", "1x200", ',xid="79"'), LATER),
    Case("BraidGpuMemoryErrors", gpu("ecc_errors_total", "3x10 4x200", ',type="uncorrected"'),
         LATER, {**OF_GPU, "type": "uncorrected"}, "GPU 0 of a:1 has memory errors",
         "ECC could not correct memory errors of GPU-a."),
    Case("BraidGpuMemoryErrors", gpu("ecc_errors_total", "0+1x200", ',type="corrected"'), LATER),
    Case("BraidGpuHot", gpu("temperature_celsius", "91x200"), LATER, OF_GPU,
         "GPU 0 of a:1 is hot", "It has been above 87 °C for five minutes, now 91 °C."),
    Case("BraidGpuHot", gpu("temperature_celsius", "80x200"), LATER),
    Case("BraidGpuThrottled", gpu("throttled", "1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0",
                                  ',reason="hardware_thermal"'), LATER,
         {**OF_GPU, "reason": "hardware_thermal"}, "GPU 0 of a:1 is throttled",
         "Its clocks are reduced 54.55% of the time because of hardware_thermal."),
    Case("BraidGpuThrottled", gpu("throttled", "1x200", ',reason="power_cap"'), LATER),
    Case("BraidGpuMemoryNearlyFull",
         {**gpu("memory_used_bytes", "96x200"), **gpu("memory_total_bytes", "100x200")}, LATER,
         OF_GPU, "The memory of GPU 0 of a:1 is nearly full", "96% of it is in use."),
    Case("BraidGpuMemoryNearlyFull",
         {**gpu("memory_used_bytes", "90x200"), **gpu("memory_total_bytes", "100x200")}, LATER),
    Case("BraidGpuSensorFails", gpu("sensor_errors_total", "0+1x200", SENSOR), "40m",
         {**OF_GPU, "sensor": "braid_gpu_power_watts"}, "A sensor of GPU 0 of a:1 fails",
         "braid_gpu_power_watts has gaps, so alerts that use it may not fire."),
    Case("BraidGpuSensorFails", gpu("sensor_errors_total", "3x200", SENSOR), "40m"),
    Case("BraidTrainerFailed", {FAILED: "0x5 2x200"}, LATER, {"state": "failed"},
         "2 trainers of Braid server a:1 have failed",
         "An update was interrupted. They accept only RestoreCheckpoint and DeleteTrainer."),
    Case("BraidTrainerFailed", {FAILED: "0x200"}, LATER),
    Case("BraidCheckpointFailed", trainer("checkpoints_total", "0x10 1x200", ',outcome="failed"'),
         LATER, {**OF_TRAINER, "outcome": "failed"}, "Checkpoints of trainer t fail on a:1",
         "A restart must replay everything since the last successful checkpoint. Without a "
         "journal, a crash loses it."),
    Case("BraidCheckpointFailed", trainer("checkpoints_total", "0+1x200", ',outcome="written"'),
         LATER),
    Case("BraidJournalFailed", trainer("journal_errors_total", "0x10 1x200"), "15m", OF_TRAINER,
         "Trainer t of a:1 has stopped",
         "Its journal cannot be written, so its operations fail. Nothing is lost."),
    Case("BraidJournalFailed", trainer("journal_errors_total", "1x200"), LATER),
    Case("BraidVersionNotWritten", versions("failed", "0x10 1x200"), LATER,
         {"model": "m", "outcome": "failed"}, "Versions of model m are not written on a:1",
         "A published version is served, but would be lost when the server ends."),
    Case("BraidVersionNotWritten", versions("superseded", "0+1x200"), LATER),
    Case("BraidCheckpointOld",
         {**trainer(WRITTEN, "0x200"), **trainer("training_steps_total", "0+9x200")}, LONG,
         OF_TRAINER, "Trainer t of a:1 has no recent checkpoint",
         "The last one is 1h 20m 0s old, and there were updates since."),
    Case("BraidCheckpointOld",
         {**trainer(WRITTEN, "0x200"), **trainer("training_steps_total", "9x200")}, LONG),
    Case("BraidCheckpointOld",
         {**trainer(WRITTEN, "0+60x200"), **trainer("training_steps_total", "0+9x200")}, LONG),
    Case("BraidStepsSkipped", trainer("training_skipped_steps_total", "0x5 0+1x200"), LATER,
         OF_TRAINER, "Trainer t of a:1 skips batches",
         "14 batches in the last 15 minutes had a non-finite loss or non-finite gradients."),
    Case("BraidStepsSkipped", trainer("training_skipped_steps_total", "0x5 1x200"), LATER),
    Case("BraidLossStuck",
         {**trainer("training_loss", "0.7x200"), **trainer("training_steps_total", "0+60x200")},
         LONG, OF_TRAINER, "The loss of trainer t of a:1 does not change",
         "It stayed constant over more than a thousand updates in the last hour."),
    Case("BraidLossStuck",
         {**trainer("training_loss", "0.7-0.001x200"),
          **trainer("training_steps_total", "0+60x200")}, LONG),
    Case("BraidLossStuck",
         {**trainer("training_loss", "0.7x200"), **trainer("training_steps_total", "60x200")},
         LONG),
    Case("BraidReplicasUneven",
         {**trainer("replica_imbalance_ratio_sum", "0+4x200"),
          **trainer("replica_imbalance_ratio_count", "0+10x200")}, "40m",
         OF_TRAINER, "Replicas of trainer t of a:1 are uneven",
         "Its devices wait for the slowest one 40% of the time."),
    Case("BraidReplicasUneven",
         {**trainer("replica_imbalance_ratio_sum", "0+1x200"),
          **trainer("replica_imbalance_ratio_count", "0+10x200")}, "40m"),
    Case("BraidJobStuck", job(PROGRESS, "0+60x2 120x200"), LATER, OF_JOB,
         "Job nightly of Braid server a:1 is stuck",
         "The train job with model m runs, but has made no progress for 18m 0s."),
    Case("BraidJobStuck", job(PROGRESS, "0+60x200"), LATER),
    # It has ended.
    Case("BraidJobStuck", job(PROGRESS, "0x10 stale"), LATER),
    Case("BraidJobsWait", job_states("2x200", "0x200"), LATER, {},
         "Jobs of Braid server a:1 do not start",
         "Queued jobs: 2. None has run for ten minutes."),
    Case("BraidJobsWait", job_states("2x200", "1x200"), LATER),
    Case("BraidJobsWait", job_states("0x200", "0x200"), LATER),
    # From one job to the next.
    Case("BraidJobsWait", job_states("3x200", "1 0 1x15 0 1x200"), LATER),
    Case("BraidJobFailed", {FAILURES: "0x10 1x200"}, LATER, OF_FAILURE,
         "A job of Braid server a:1 has failed",
         "At least one train job failed with NOT_FOUND in the last 15 minutes."),
    Case("BraidJobFailed", {FAILURES: "3x200"}, LATER),
    Case("BraidJobFailed", {FAILURES: "0x10 1x200"}, "40m"),
    Case("BraidJobsFail", ended_jobs("0x70 3x200", "0x70 1x200"), LONG, {},
         "Most jobs of Braid server a:1 fail", "75% of the jobs of the last hour failed."),
    # Two of two.
    Case("BraidJobsFail", ended_jobs("0x70 2x200", "0x200"), LONG),
    # Three of eight.
    Case("BraidJobsFail", ended_jobs("0x70 3x200", "0x70 5x200"), LONG),
]  # fmt: skip


def expected(case: Case) -> list[dict]:
    if case.fires is None:
        return []
    rule = RULES[case.alert]
    server = {"job": "braid", "instance": "a:1"} if case.server else {}
    annotations = {"summary": case.summary, "description": case.description}
    return [
        {
            "exp_labels": {"severity": rule["labels"]["severity"], **server, **case.fires},
            "exp_annotations": {**annotations, "runbook": rule["annotations"]["runbook"]},
        }
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_alert(case: Case, tmp_path: Path) -> None:
    test = {
        "interval": case.every,
        "input_series": [{"series": name, "values": case.series[name]} for name in case.series],
        "alert_rule_test": [
            {"eval_time": case.at, "alertname": case.alert, "exp_alerts": expected(case)}
        ],
    }
    rules = [str(path) for path in PROMETHEUS.glob("*.rules.yaml")]
    path = tmp_path / "test.yaml"
    tests = {"rule_files": rules, "evaluation_interval": case.every, "tests": [test]}
    path.write_text(json.dumps(tests))
    done = subprocess.run([PROMTOOL, "test", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_firing_and_a_quiet_case() -> None:
    for quiet in (True, False):
        assert {case.alert for case in CASES if (case.fires is None) is quiet} == set(RULES)


def test_every_alert_has_a_section_of_the_runbook() -> None:
    sections = re.findall(r"^### (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sections == list(dict.fromkeys(sections))
    assert set(sections) == set(RULES)
    for name, rule in RULES.items():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{name.lower()}"


def test_scrape_configuration_is_valid() -> None:
    command = [PROMTOOL, "check", "config", PROMETHEUS / "prometheus.yaml"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
