"""`braid jobs` against a fake server."""

import re

import grpc
import pytest
import yaml

from braid import _job_specs
from braid.cli import job_specs
from fake_jobs import RUNNING


@pytest.fixture
def spec(tmp_path):
    """spec(text): the path of a new file."""

    def write(text):
        path = tmp_path / "spec.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def submit(call, spec):
    """Submits a training job with the ID `a`."""
    return lambda *options: call("jobs", "submit", spec(job_specs.TRAIN), "--id=a", *options)


def lines(ended):
    assert (ended.code, ended.err) == (0, "")
    return ended.out.splitlines()


def events(ended):
    assert (ended.code, ended.err) == (0, "")
    return ended.events


@pytest.mark.parametrize("kind", ["train", "infer"])
def test_init_prints_a_valid_spec(run, kind, tmp_path):
    ended = run("jobs", "init", kind)
    assert _job_specs.to_proto(yaml.safe_load(ended.out)).WhichOneof("kind") == kind
    assert run("jobs", "init", kind, "-") == ended
    path = tmp_path / "new.yaml"
    assert lines(run("jobs", "init", kind, path)) == [f"wrote {path}"]
    assert path.read_text() == ended.out
    again = run("jobs", "init", kind, path)
    assert (again.code, again.out) == (2, "")
    assert again.err == f"braid: {path}: cannot be written (File exists)\n"


@pytest.mark.parametrize("text", [job_specs.TRAIN, job_specs.INFER])
def test_options_in_the_comments_of_a_spec_are_valid(text):
    """Each commented line is an option that may replace the line above, or be added."""
    for line in text.splitlines():
        option = line.strip().removeprefix("# ")
        if not line.strip().startswith("# ") or ": " not in option or option[0].isupper():
            continue
        indented = line.startswith("  ")
        added = yaml.safe_load(option)
        spec = yaml.safe_load(text)
        (spec["data" if "inputs" in added or "split" in added or "weights" in added else "output"]
         if indented else spec).update(added)
        _job_specs.to_proto(spec)


def test_submit(submit, server):
    assert lines(submit()) == ["submitted job a. To follow it: braid jobs watch a"]
    assert events(submit("--json")) == [{"id": "a", "state": "SUCCEEDED"}]
    assert list(server.jobs.jobs) == ["a"]


def test_submit_and_wait(submit):
    assert lines(submit("--wait")) == [
        "submitted job a", "QUEUED", "RUNNING", "epoch 1/1  step 3/3  loss 0.3333",
        "job a SUCCEEDED  version 3  accuracy 0.75  loss 0.25",
    ]
    assert events(submit("--wait", "--json")) == [{
        "id": "a", "state": "SUCCEEDED", "reason": "", "version": 3,
        "metrics": {"accuracy": 0.75, "loss": 0.25},
    }]


def test_wait_for_an_inference_job(call, spec):
    ended = call("jobs", "submit", spec(job_specs.INFER), "--id=b", "--wait", "--json")
    assert events(ended) == [{
        "id": "b", "state": "SUCCEEDED", "reason": "", "metrics": {},
        "output": "/outputs/scores.parquet", "rows": 30,
    }]


def test_exit_code_of_a_failed_job(submit, server):
    server.jobs.failure = "data.path: no file (NOT_FOUND)"
    ended = submit("--wait", "--json")
    assert ended.code == 1
    assert ended.events[0]["state"] == "FAILED"
    assert ended.events[0]["reason"] == "data.path: no file (NOT_FOUND)"
    ended = submit("--wait")
    assert ended.out.splitlines()[-1] == "job a FAILED  data.path: no file (NOT_FOUND)"


def test_dry_run(submit, server):
    [line] = lines(submit("--dry-run"))
    assert line.endswith("spec.yaml: valid (30 rows)")
    assert events(submit("--dry-run", "--json")) == [{"rows": 30, "steps": 0}]
    assert server.jobs.jobs == {}
    assert "--wait: given with --dry-run" in submit("--dry-run", "--wait").err


@pytest.mark.parametrize("text, message", [
    ("kind: train\nmodle: x\n", "modle: unknown key (expected one of kind, model, "),
    ("kind: infer\nmodel: m\ndata: {path: p, input: {x: a}}\noutput: {path: o}\n",
     "data.inputs: missing"),
    ("kind: infer\nmodel: m\ndata: {path: p, inputs: {x: a}, shuffl: 1}\noutput: {path: o}\n",
     "data.shuffl: unknown key (expected one of path, inputs, on_unreadable)"),
    ("- a\n", "not a job spec (expected keys and values; see braid jobs init)"),
    ("", "not a job spec (expected keys and values; see braid jobs init)"),
    ("kind: [\n", "not valid YAML ("),
    ("kind: train\nkind: infer\n", "not valid YAML (key 'kind' is given twice "),
    ("kind: train\nloss: {name: module, module: none.pt}\n",
     "loss.module: cannot read 'none.pt' (No such file or directory)"),
])  # fmt: skip
def test_wrong_specs_end_with_2_and_name_the_key(call, spec, text, message):
    path = spec(text)
    ended = call("jobs", "submit", path)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"braid: {path}: {message}")
    assert ended.err.count("\n") == 1


def test_missing_file(call):
    assert call("jobs", "submit", "none.yaml").err == (
        "braid: none.yaml: cannot be read (No such file or directory)\n"
    )


def test_loss_module_is_read_from_its_file(call, spec, server, tmp_path):
    (tmp_path / "loss.pt").write_bytes(b"script")
    text = job_specs.TRAIN.replace(
        "loss: cross_entropy", "loss: {name: module, module: loss.pt}"
    )
    lines(call("jobs", "submit", spec(text)))
    [request] = server.received("SubmitJob")
    assert request.spec.train.losses[0].module == b"script"


def test_numbers_in_the_forms_that_yaml_takes_for_text(call, spec, server):
    lines(call("jobs", "submit", spec(job_specs.TRAIN.replace("lr: 0.01", "lr: 1e-3"))))
    [request] = server.received("SubmitJob")
    assert request.spec.train.optimizer.sgd.lr == 1e-3


def test_list(submit, call):
    assert lines(call("jobs", "list")) == ["job  kind  model  priority  state  progress  created"]
    submit()
    row = lines(call("jobs", "list", "--state", "succeeded"))[1]
    assert row.split()[:6] == ["a", "train", "fashion", "0", "SUCCEEDED", "100%"]
    [listed] = events(call("jobs", "list", "--json"))[0]["jobs"]
    assert (listed["id"], listed["state"], listed["version"]) == ("a", "SUCCEEDED", 3)
    assert listed["progress"]["rows"] == 30
    assert events(call("jobs", "list", "--state", "queued", "--json")) == [{"jobs": []}]
    assert "--state: invalid value 'done'" in call("jobs", "list", "--state", "done").err


def test_show(submit, call):
    submit()
    shown = dict(line.split("  ", 1) for line in lines(call("jobs", "show", "a")))
    assert shown["state"].strip() == "SUCCEEDED"
    assert shown["result"].strip() == "version 3  accuracy 0.75  loss 0.25"
    [info] = events(call("jobs", "show", "a", "--json"))
    assert info["spec"]["model"] == "fashion"
    ended = call("jobs", "show", "b")
    assert (ended.code, ended.err) == (1, "braid: id: there is no job 'b' (NOT_FOUND)\n")


def test_show_names_the_priority(call, spec):
    call("jobs", "submit", spec(job_specs.TRAIN + "priority: -3\n"), "--id=a")
    shown = dict(line.split(maxsplit=1) for line in lines(call("jobs", "show", "a")))
    assert shown["priority"] == "-3"


def test_watch(submit, call):
    submit()
    seen = events(call("jobs", "watch", "a", "--json"))
    assert [event.get("state") for event in seen] == [
        "QUEUED", "RUNNING", None, None, "SUCCEEDED", "SUCCEEDED",
    ]  # fmt: skip
    assert seen[3]["progress"]["step"] == 3
    assert seen[-1]["version"] == 3


def test_watch_ends_with_the_reason_of_an_early_stop(submit, call, server):
    submit()
    server.jobs.jobs["a"].reason = "stopped early"
    assert lines(call("jobs", "watch", "a"))[-1] == (
        "job a SUCCEEDED  version 3  accuracy 0.75  loss 0.25  stopped early"
    )


def test_pause_and_resume(submit, call, server):
    server.jobs.runs = False
    submit()
    assert lines(call("jobs", "pause", "a")) == ["job a is PAUSED"]
    assert events(call("jobs", "resume", "a", "--json")) == [{"id": "a", "state": "QUEUED"}]
    server.jobs.jobs["a"].state = RUNNING
    assert lines(call("jobs", "pause", "a")) == [
        "pausing job a: it stops after its current step",
    ]  # fmt: skip
    shown = dict(line.split(maxsplit=1) for line in lines(call("jobs", "show", "a")))
    assert shown["state"] == "RUNNING, to be paused"


def test_cancel(submit, call, server):
    server.jobs.runs = False
    submit()
    assert lines(call("jobs", "cancel", "a")) == ["job a is CANCELLED"]
    assert events(call("jobs", "cancel", "a", "--json")) == [{"id": "a", "state": "CANCELLED"}]
    server.jobs.jobs["a"].cancel_requested = True
    shown = dict(line.split(maxsplit=1) for line in lines(call("jobs", "show", "a")))
    assert shown["state"] == "CANCELLED"
    assert "trainer" not in shown  # The job has never run.


def test_cancel_of_a_job_that_has_ended(submit, call):
    submit()
    assert lines(call("jobs", "cancel", "a")) == ["job a has already ended: SUCCEEDED"]


def test_rm(submit, call):
    submit()
    assert lines(call("jobs", "rm", "a")) == ["deleted job a"]
    assert call("jobs", "rm", "a").code == 1


def test_logs(submit, call):
    submit()
    printed = lines(call("jobs", "logs", "a"))
    assert [line.split("  ", 1)[1] for line in printed] == [
        "info     starts at step 0", "warning  slow disk", "error    data.path: broken",
    ]  # fmt: skip
    assert events(call("jobs", "logs", "a", "--json"))[1] == {
        "time": 2.0, "level": "warning", "text": "slow disk",
    }  # fmt: skip
    assert events(call("jobs", "logs", "a", "--json"))[2]["text"] == "data.path: broken"


def test_unknown_metric(submit, call):
    submit()
    ended = call("jobs", "metrics", "a", "--name", "loss", "--name", "nonsense")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        "braid: --name: job a has no metric 'nonsense' (expected one of: evaluation/loss, loss)\n"
    )


def test_errors_of_the_server_name_the_keys_of_the_spec(submit, call, server):
    server.fail("SubmitJob", grpc.StatusCode.INVALID_ARGUMENT, "spec.train.weight_column: no 'w'")
    assert submit("--dry-run").err == "braid: data.weights: no 'w' (INVALID_ARGUMENT)\n"
    server.jobs.failure = "schedule.step.step_size: 0 is out of range"
    ended = submit("--wait")
    reason = "schedule.step_size: 0 is out of range"
    assert ended.out.splitlines()[-1] == f"job a FAILED  {reason}"
    shown = dict(line.split(maxsplit=1) for line in lines(call("jobs", "show", "a")))
    assert shown["reason"] == reason


EVERY_TRAINING_KEY = {
    "kind": "train", "model": "m", "version": 2, "from_trainer": "t", "from_checkpoint": "c",
    "data": {
        "path": "p", "inputs": {"x": {"column": "a", "dtype": "FP32", "scale": 2}},
        "targets": {"t": ["b", "c"]}, "split": {"validation": 0.1}, "weights": "w",
    },
    "evaluate": {"path": "e", "every": "2 steps", "metrics": ["mae"], "k": 3, "batch_size": 4},
    "loss": {"name": "huber", "delta": 2, "output": "o"},
    "optimizer": {"name": "AdamW", "lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-5},
    "epochs": 2, "batch_size": 4, "shuffle": False, "drop_last": True, "publish": "best",
    "best_metric": "mae", "tags": ["a"], "priority": 3,
    "early_stopping": {"metric": "mae", "mode": "min", "patience": 2, "min_delta": 0.5},
    "schedule": {"name": "CosineAnnealingLR", "T_max": 9, "warmup": {"steps": 2}},
    "parameter_groups": [{"pattern": "a", "lr": 0.1}], "clip_grad_norm": 1, "clip_grad_value": 2,
    "precision": "bfloat16", "grad_scaler": {"init_scale": 2}, "eval_modules": ["b"], "seed": 1,
    "stages": [{"path": "a", "devices": ["cpu:0"]}], "micro_batch": 2, "checkpoint_every": 5,
    "checkpoint_every_seconds": 6, "checkpoint_keep": 7,
}  # fmt: skip
EVERY_INFERENCE_KEY = {
    "kind": "infer", "model": "m", "version": 2, "batch_size": 3,
    "data": {"path": "p", "inputs": {"x": "a", "y": {"column": ["a", "b"], "dtype": "FP32"}}},
    "output": {
        "path": "o.npy", "format": "npy", "keep": ["id"], "outputs": {"y": "z"}, "overwrite": True,
    },
}  # fmt: skip


def fields_of(message, path):
    for field, value in message.ListFields():
        repeated = hasattr(value, "append")
        for index, each in enumerate(value if repeated else [value]):
            where = f"{path}.{field.name}" + (f"[{index}]" if repeated else "")
            if hasattr(each, "ListFields"):
                yield from fields_of(each, where)
            else:
                yield where


@pytest.mark.parametrize("spec", [EVERY_TRAINING_KEY, EVERY_INFERENCE_KEY])
def test_each_field_of_a_spec_has_a_key(spec):
    for field in fields_of(_job_specs.to_proto(spec), "spec"):
        key = job_specs.with_keys(f"{field}: wrong", spec).removesuffix(": wrong")
        value = spec
        for part in re.findall(r"\w+", key):
            value = value[int(part) if part.isdigit() else part]


@pytest.mark.parametrize("text, expected", [
    ("spec.train.data.inputs[0].datatype: column 'datatype' is FP64; set the datatype to convert",
     "data.inputs.x.dtype: column 'datatype' is FP64; set the dtype to convert"),
    ("spec.train.publish: needs one (expected evaluation, or PUBLISH_LAST)",
     "publish: needs one (expected evaluate, or publish: last)"),
    ("spec.train.evaluation.path: missing (expected a dataset, or a validation_split above 0)",
     "evaluate.path: missing (expected a dataset, or a data.split.validation above 0)"),
    ("spec.train.losses[0].delta: -1", "loss.delta: -1"),
    ("the disk is full", "the disk is full"),
])  # fmt: skip
def test_names_in_messages_about_a_spec(text, expected):
    assert job_specs.with_keys(text, EVERY_TRAINING_KEY) == expected


def test_metrics(submit, call):
    submit()
    assert [line.split() for line in lines(call("jobs", "metrics", "a"))] == [
        ["step", "evaluation/loss", "loss"],
        ["1", "1"],
        ["2", "0.5"],
        ["3", "0.5", "0.333333"],
    ]
    assert events(call("jobs", "metrics", "a", "--name", "evaluation/loss", "--json")) == [
        {"evaluation/loss": {"steps": [3], "values": [0.5]}}
    ]
