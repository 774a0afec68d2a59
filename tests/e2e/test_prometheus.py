"""A real Prometheus that scrapes a busy server has data for all dashboards and alerts."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import braid
import grpc
import numpy as np
import pytest
import yaml
from e2e.support import oracle, protocol
from e2e.support.polling import wait_until
from e2e.support.prometheus import Prometheus
from e2e.support.server import BINARY, ROOT, Server

DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
RULES = sorted((ROOT / "deploy/prometheus").glob("*.rules.yaml"))
# The model for clients that only stream.
STREAMED = "smooth"
WAITING = "inference: Part of the time spent waiting A"
FAKE_NVML = BINARY.parents[1] / "lib/libfake_nvml.so"
# Duration of the load in seconds, with a scrape in each second.
SCRAPES = 10
# Variables that Grafana fills in.
WINDOWS = {"$__rate_interval": "30s", "$__range": "5m"}


class Query(NamedTuple):
    where: str
    query: str


def dashboard_queries(**chosen: str) -> Iterator[Query]:
    """chosen: values of variables by name. Other variables match all values."""
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        values = {
            f"${variable['name']}": chosen.get(variable["name"], variable["allValue"])
            for variable in dashboard["templating"]["list"]
            if "allValue" in variable
        }
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                query = target["expr"]
                for name, value in (WINDOWS | values).items():
                    query = query.replace(name, value)
                yield Query(f"{path.stem}: {panel['title']} {target['refId']}", query)


def model_queries(model: str) -> list[Query]:
    return sorted(set(dashboard_queries(model=model)) - set(dashboard_queries()))


def variable_queries() -> Iterator[Query]:
    """Returns the series and the label that supply the values of each variable."""
    for path in DASHBOARDS:
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                yield Query(f"{path.stem}: {variable['name']}", variable["query"])


def alert_queries() -> Iterator[Query]:
    """Returns each selector of an alert's expression. The full expression is empty without a
    fault."""
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                for selector in re.findall(r"\b(?:braid|process)_\w+(?:{[^}]*})?", rule["expr"]):
                    yield Query(f"{rule['alert']}: {selector.split('{')[0]}", selector)


def named(queries: Iterable[Query]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "query", list(dict.fromkeys(queries)), ids=lambda query: query.where
    )


def infer(client: braid.Client) -> None:
    for rows in (1, 7, 64, 300):
        client.infer("mlp", {"x": np.zeros((rows, 784), np.float32)})


def stream(stub: protocol.Stub, model: str) -> None:
    """Sends requests that are all in flight at once, and one that is rejected."""
    shapes = [(1, 784), (7, 784), (64, 784), (300, 784)] * 4
    requests = []
    for rows, columns in (*shapes, (1, 7)):
        request = protocol.message("inference.ModelInferRequest")(model_name=model)
        request.inputs.add(name="x", datatype="FP32", shape=(rows, columns))
        request.raw_input_contents.append(np.zeros((rows, columns), np.float32).tobytes())
        requests.append(request)
    refused = [reply.error_message != "" for reply in stub.ModelStreamInfer(iter(requests))]
    assert refused == [False] * len(shapes) + [True]


def fail(client: braid.Client, stub: protocol.Stub) -> None:
    """Makes a call for each status code that alerts and dashboards use."""
    row = np.zeros((1, 784), np.float32)
    for error, model, inputs in (
        (braid.NotFound, "nosuch", {"x": row}),
        (braid.InvalidArgument, "mlp", {"y": row}),
    ):
        with pytest.raises(error):
            client.infer(model, inputs)
    # This model's batches wait for more requests longer than this request's timeout.
    with pytest.raises(braid.DeadlineExceeded):
        client.infer("waiting_words", {"words": np.zeros(1, np.int64)}, timeout=0.1)
    # This server does not load models on request.
    load = protocol.message("inference.RepositoryModelLoadRequest")(model_name="mlp")
    with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        stub.RepositoryModelLoad(load)


def train(trainer: braid.Trainer) -> None:
    for x, target in oracle.batches_of("chain", "cross_entropy", rows=97, steps=5):
        trainer.step({"x": x}, {"target": target})
    trainer.save_checkpoint()


class Load:
    """Context manager that repeats each of `works` on its own thread."""

    def __init__(self, *works: Callable[[], None]) -> None:
        self._threads = [threading.Thread(target=self._repeat, args=[work]) for work in works]
        self._stop = threading.Event()
        self._failures: list[BaseException] = []

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert self._failures == []

    def _repeat(self, work: Callable[[], None]) -> None:
        try:
            while not self._stop.is_set():
                work()
        except BaseException as failure:
            self._failures.append(failure)


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server that loads the fake NVML like the driver's."""
    libraries = tmp_path_factory.mktemp("driver")
    (libraries / "libnvidia-ml.so.1").symlink_to(FAKE_NVML.resolve(strict=True))
    return start_server(
        "cpu*2",
        names=("mlp", STREAMED, "chain", "waiting_words"),
        environment={"LD_LIBRARY_PATH": str(libraries)},
    )


def configuration(server: Server) -> dict:
    """The configuration of deploy/, for this server and with short intervals."""
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(path) for path in RULES]
    config["scrape_configs"][0]["static_configs"] = [
        {"targets": [f"127.0.0.1:{server.ready['metrics_port']}"]}
    ]
    config["scrape_configs"] = config["scrape_configs"][:1]
    return config


@pytest.fixture(scope="module")
def prometheus(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with Prometheus(configuration(server), tmp_path_factory.mktemp("prometheus")) as running:
        yield running


@pytest.fixture(scope="module")
def loaded_at(server: Server, prometheus: Prometheus) -> float:
    """Returns the time after the server was under load for SCRAPES scrapes."""
    options = {"loss": "cross_entropy", "optimizer": {"name": "SGD", "lr": 0.1}}
    scrapes = 'count_over_time(up{job="braid"}[5m])'
    with (
        braid.connect(server.address) as client,
        protocol.channel(server.address) as channel,
    ):
        trainer = client.create_trainer("chain", name="kept", clip_grad_norm=1.0, **options)
        stub = protocol.Stub(channel, "inference.GRPCInferenceService")
        works = (
            lambda: infer(client),
            lambda: stream(stub, "mlp"),
            lambda: stream(stub, STREAMED),
            lambda: fail(client, stub),
            lambda: train(trainer),
        )

        def wait_for_scrapes(count: int) -> None:
            before = sum(prometheus.values(scrapes))
            wait_until(lambda: sum(prometheus.values(scrapes)) >= before + count)

        # New series have no rate before their second scrape.
        for work in works:
            work()
        wait_for_scrapes(1)
        with Load(*works):
            wait_for_scrapes(SCRAPES)
            return time.time()


@named(dashboard_queries())
def test_dashboards_have_data(prometheus: Prometheus, loaded_at: float, query: Query) -> None:
    values = prometheus.values(query.query, loaded_at)
    assert values and not all(math.isnan(value) for value in values)


@named(model_queries(STREAMED))
def test_streams_have_data(prometheus: Prometheus, loaded_at: float, query: Query) -> None:
    values = prometheus.values(query.query, loaded_at)
    assert values and not all(math.isnan(value) for value in values)


@pytest.mark.parametrize("model", ["mlp", STREAMED])
def test_queue_time_is_part_of_the_request_time(
    prometheus: Prometheus, loaded_at: float, model: str
) -> None:
    [query] = [query for where, query in model_queries(model) if where == WAITING]
    [part] = prometheus.values(query, loaded_at)
    assert 0 < part < 1


@named(variable_queries())
def test_variables_have_values(prometheus: Prometheus, loaded_at: float, query: Query) -> None:
    selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query.query).groups()
    selector = re.sub(r"\$\w+", ".*", selector)
    assert prometheus.ask(f"label/{label}/values", **{"match[]": selector})


@named(alert_queries())
def test_alerts_have_data(prometheus: Prometheus, loaded_at: float, query: Query) -> None:
    assert prometheus.values(query.query, loaded_at)


def test_alerts_are_evaluated(prometheus: Prometheus, loaded_at: float) -> None:
    def rules() -> list[dict]:
        return [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]

    wait_until(lambda: all(rule["health"] != "unknown" for rule in rules()))
    assert [rule for rule in rules() if rule["health"] != "ok"] == []
    # The fake driver reports one.
    [xid] = next(rule["alerts"] for rule in rules() if rule["name"] == "BraidGpuXid")
    assert xid["labels"]["xid"] == "79"
    assert xid["annotations"]["description"].endswith("GPU-aa.")
