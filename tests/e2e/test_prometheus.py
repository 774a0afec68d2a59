"""A real Prometheus that scrapes a busy server has data for all dashboards and alerts."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import braid
import pytest
import yaml
from e2e.support import dashboard_load, protocol
from e2e.support.dashboard_load import RULES, STREAMED
from e2e.support.polling import wait_until
from e2e.support.prometheus import Prometheus
from e2e.support.server import ROOT, Server

DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
WAITING = "inference: Fraction of time in the queue A"
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


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Server:
    environment = dashboard_load.fake_driver(tmp_path_factory.mktemp("driver"))
    flags = dashboard_load.job_flags(tmp_path_factory.mktemp("data"))
    return start_server("cpu*2", names=dashboard_load.MODELS, flags=flags, environment=environment)


@pytest.fixture(scope="module")
def prometheus(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    directory = tmp_path_factory.mktemp("prometheus")
    with Prometheus(dashboard_load.configuration(server), directory) as running:
        yield running


@pytest.fixture(scope="module")
def loaded_at(server: Server, prometheus: Prometheus) -> float:
    """Returns the time after the server was under load for SCRAPES scrapes."""
    scrapes = 'count_over_time(up{job="braid"}[5m])'
    with (
        braid.connect(server.address) as client,
        protocol.channel(server.address) as channel,
    ):
        stub = protocol.Stub(channel, "inference.GRPCInferenceService")
        works = dashboard_load.calls(client, stub, dashboard_load.create_trainer(client))

        def wait_for_scrapes(count: int) -> None:
            before = sum(prometheus.values(scrapes))
            wait_until(lambda: sum(prometheus.values(scrapes)) >= before + count)

        dashboard_load.submit_job(client)
        # New series have no rate before their second scrape.
        for work in works:
            work()
        wait_for_scrapes(1)
        with dashboard_load.Load(*works):
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
