"""Tests that check_includes.py reports violations of each rule."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import check_includes  # noqa: E402

# One file per layer, without violations.
GOOD = {
    "server/main.cc": '#include "server/server.h"\n#include "server/rpc/codec.h"\n',
    "server/server.h": "#include <memory>\n",
    "server/server.cc": '#include "server/server.h"\n#include "server/rpc/codec.h"\n',
    "server/rpc/codec.h": '#include "inference/grpc_service.pb.h"\n',
    "server/rpc/codec.cc": '#include "server/rpc/codec.h"\n#include "server/batching/queue.h"\n',
    "server/batching/queue.h": '#include "server/base/clock.h"\n',
    "server/batching/queue.cc": '#include "server/parallel/split.h"\n',
    "server/training/trainer/trainer.cc": '#include "server/models/module.h"\n',
    "server/models/module.h": '#include "server/parallel/replica.h"\n#include "torch/script.h"\n',
    "server/parallel/replica.h": '#include "ATen/ATen.h"\n#include "server/devices/worker.h"\n',
    "server/parallel/split.h": '#include "ATen/ATen.h"\n',
    "server/devices/worker.h": '#include "server/telemetry/metrics.h"\n',
    "server/telemetry/metrics.h": '#include "server/base/clock.h"\n',
    "server/base/clock.h": "#include <ctime>\n",
    "client/cpp/client.h": '#include "inference/grpc_service.grpc.pb.h"\n',
    "tests/unit/rpc/codec_test.cc": '#include "server/rpc/codec.h"\n',
}


def test_the_intended_layout_breaks_no_rule():
    assert check_includes.check(GOOD) == []


@pytest.mark.parametrize("path, include, complaint", [
    ("server/batching/queue.cc", "server/rpc/codec.h", "nothing includes rpc/"),
    ("server/server.h", "server/rpc/codec.h", "nothing includes rpc/"),
    ("server/base/clock.h", "server/telemetry/metrics.h", "base/ must not depend on telemetry/"),
    ("server/devices/worker.h", "server/parallel/split.h", "devices/ must not depend on parallel/"),
    ("server/parallel/split.h", "server/models/module.h", "parallel/ must not depend on models/"),
    ("server/batching/a.cc", "server/training/trainer/trainer.h", "must not depend on training/"),
    ("server/extra/thing.cc", "server/base/clock.h", "server/extra/ has no place"),
    ("client/cpp/client.cc", "server/base/clock.h", "client/ knows nothing of server/"),
    ("server/devices/cuda/nccl.cc", "server/rpc/codec.h", "nothing includes rpc/"),
])
def test_layer_rules(path, include, complaint):
    errors = check_includes.check(GOOD | {path: f'#include "{include}"\n'})
    assert any(error.startswith(f"{path}:") and complaint in error for error in errors), errors


@pytest.mark.parametrize("path, include, complaint", [
    ("server/training/trainer/trainer.cc", "<grpcpp/grpcpp.h>", "the engine does not include gRPC"),
    ("server/batching/queue.cc", '"braid/v1/training.grpc.pb.h"', "does not include gRPC"),
    ("server/parallel/a.cc", "<google/protobuf/any.h>", "parallel/ does not include protobuf"),
    ("server/devices/plan.cc", '"braid/v1/device.pb.h"', "devices/ does not include protobuf"),
    ("server/rpc/codec.cc", "<ATen/ATen.h>", "rpc/ does not include LibTorch"),
    ("server/rpc/codec.cc", '"server/parallel/split.h"', "rpc/ does not include LibTorch"),
    ("server/models/config.cc", '"inference/model_config.pb.h"', None),
])
def test_library_rules(path, include, complaint):
    errors = check_includes.check(GOOD | {path: f"#include {include}\n"})
    if complaint is None:
        assert errors == []
    else:
        assert any(error.startswith(f"{path}:") and complaint in error for error in errors), errors


def test_libtorch_and_protobuf_in_one_translation_unit_through_our_headers():
    path = "server/models/config.cc"
    text = '#include "server/models/module.h"\n#include "inference/model_config.pb.h"\n'
    assert check_includes.check(GOOD | {path: text}) == [
        f"{path}: sees LibTorch and protobuf at once: "
        "server/models/module.h → torch/script.h and inference/model_config.pb.h"]


def test_include_cycles_end():
    files = {"server/base/a.h": '#include "server/base/b.h"\n',
             "server/base/b.h": '#include "server/base/a.h"\n'}
    assert check_includes.check(files) == []


def test_includes_in_comments_and_strings_do_not_count():
    text = '// #include "a.h"\n  #  include "b.h"\nauto s = "#include <c.h>";\n#include <d>\n'
    assert check_includes.includes_of(text) == ["b.h", "d"]
