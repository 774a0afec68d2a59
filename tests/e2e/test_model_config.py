"""Versions, placement and warm-up follow config.pbtxt."""

from __future__ import annotations

import queue
from pathlib import Path

import grpc
import numpy as np
import pytest
from e2e.support.inference import infer, infer_input
from e2e.support.model_control import CONFIG, Running, ask, index, reasons, refused, write
from e2e.support.protocol import CALL_SECONDS


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("", ["3"]),
        ("version_policy { latest { num_versions: 2 } }", ["2", "3"]),
        ("version_policy { all { } }", ["1", "2", "3"]),
        ("version_policy { specific { versions: [ 1, 2 ] } }", ["1", "2"]),
    ],
    ids=["default", "latest", "all", "specific"],
)
def test_version_policy_selects_the_served_versions(
    tmp_path: Path, policy: str, versions: list[str]
) -> None:
    for version in (1, 2, 3):
        write(tmp_path / "models", "a", version, version, config=CONFIG.format(rows=8) + policy)
    with Running(tmp_path) as running:
        client = running.client
        assert index(client) == [("a", version, "READY") for version in versions]
        assert list(client.get_model_metadata("a").versions) == versions
        assert list(client.get_model_metadata("a", versions[0]).versions) == versions[:1]
        for version in versions:
            assert ask(client, "a", version) == float(version)
        assert ask(client, "a") == float(versions[-1])
        for version in {"1", "2", "3"} - set(versions):
            with refused(grpc.StatusCode.NOT_FOUND, "served: " + ", ".join(versions)):
                ask(client, "a", version)


def warmed(data: str, dims: int = 4) -> str:
    return (
        CONFIG.format(rows=8)
        + f"""
model_warmup [ {{
  name: "first" batch_size: 8 count: 2
  inputs {{ key: "x" value {{ data_type: TYPE_FP32 dims: [ {dims} ] {data} }} }}
}} ]
"""
    )


def test_warm_up_runs_before_the_model_is_ready(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    for name, data in (
        ("zeros", "zero_data: true"),
        ("random", "random_data: true"),
        ("file", 'input_data_file: "x.bin"'),
        ("missing", 'input_data_file: "x.bin"'),
        ("short", 'input_data_file: "x.bin"'),
    ):
        write(repository, name, 1, 2, config=warmed(data))
    write(repository, "shape", 1, 2, config=warmed("zero_data: true", dims=5))
    for name, size in (("file", 8 * 4 * 4), ("short", 7)):
        (repository / name / "warmup").mkdir()
        (repository / name / "warmup/x.bin").write_bytes(bytes(size))
    with Running(tmp_path) as running:
        states = {name: state for name, _, state in index(running.client)}
        assert states == {
            "zeros": "READY",
            "random": "READY",
            "file": "READY",
            "missing": "UNAVAILABLE",
            "short": "UNAVAILABLE",
            "shape": "UNAVAILABLE",
        }
        why = reasons(running.client)
        for name, word in (("missing", "cannot read"), ("short", "128"), ("shape", "shape")):
            assert "model_warmup[0] ('first')" in why[name, "1"]
            assert word in why[name, "1"]
        assert ask(running.client, "zeros") == 2


def test_full_batch_runs_immediately(tmp_path: Path) -> None:
    """On one worker and if several workers share it."""
    delay = "dynamic_batching { max_queue_delay_microseconds: 60000000 }"
    write(tmp_path / "models", "a", 1, 2, config=CONFIG.format(rows=32) + delay)
    with Running(tmp_path) as running:
        answers: queue.Queue = queue.Queue()
        x = [infer_input("x", np.ones((1, 4), np.float32))]
        for _ in range(10):
            for _ in range(32):
                running.client.async_infer("a", x, lambda result, error: answers.put(error))
            errors = [answers.get(timeout=CALL_SECONDS / 2) for _ in range(32)]
            assert [str(error) for error in errors if error] == []


def test_instance_groups_place_replicas(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    groups = {
        "one": "instance_group [ { count: 1 kind: KIND_CPU } ]",
        "both": "instance_group [ { kind: KIND_CPU }, { kind: KIND_AUTO } ]",
        "three": "instance_group [ { count: 3 kind: KIND_CPU } ]",
        "gpu": "instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]",
    }
    for name, group in groups.items():
        write(repository, name, 1, 2, config=CONFIG.format(rows=8) + group)
    with Running(tmp_path) as running:
        why = reasons(running.client)
        for name, word in (("three", "--devices=cpu*N"), ("gpu", "--devices=cuda:0*N")):
            assert word in why[name, "1"]
        x = np.ones((64, 4), np.float32)
        devices: dict[str, set[str]] = {"one": set(), "both": set()}
        for name, used in devices.items():
            for _ in range(200):
                result = infer(
                    running.client, name, {"x": x}, parameters={"report_split": True}
                )
                split = result.get_response().parameters["split"].string_param
                used |= {part.split("=")[0] for part in split.split(",")}
                if len(used) == 2:
                    break
        assert devices == {"one": {"cpu:0"}, "both": {"cpu:0", "cpu:1"}}


def test_invalid_configuration_does_not_affect_other_models(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write(repository, "a", 1, 2)
    for name, text in {
        "deep": b"input { " * 100_000,
        "junk": bytes(range(256)) * 64,
        "huge": b"max_batch_size: 8\n" * (6 << 20),
        "numbers": b"max_batch_size: 999999999999999999999999",
    }.items():
        write(repository, name, 1, 2)
        (repository / name / "config.pbtxt").write_bytes(text)
    with Running(tmp_path) as running:
        for (name, _), reason in reasons(running.client).items():
            if name != "a":
                assert "config.pbtxt" in reason, name
                assert len(reason) < 1000
        assert ask(running.client, "a") == 2
