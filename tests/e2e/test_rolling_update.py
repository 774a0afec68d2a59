"""A rolling update under load: clients see no failure. scripts/drain_test.py does it for longer."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from e2e import rolling
from e2e.server import Server
from e2e.waiting import wait_until

TIMES = 3


@pytest.fixture
def models(repository: Path, tmp_path: Path) -> Path:
    shutil.copytree(repository / "mlp", tmp_path / "models/mlp")
    return tmp_path / "models"


@pytest.mark.parametrize(("client", "delay"), [("health", "1"), ("retry", "0")])
def test_no_request_fails(models: Path, tmp_path: Path, client: str, delay: str) -> None:
    """With the delay of those who watch health; who tries again elsewhere needs none."""
    with rolling.fleet(models, tmp_path / "run", cpu_threads="1", drain_delay=delay) as fleet:
        with rolling.Load(fleet.addresses, client) as load:
            for number in range(TIMES):
                fleet.replace(fleet.servers[number % 2])
    assert load.outcome.failures == []
    assert load.outcome.replies > 100 * TIMES


def test_clients_that_go_on_sending_are_hung_up_on(models: Path, tmp_path: Path) -> None:
    """Of a server that is alone they can tell by the code that it is worth to try again."""
    with rolling.fleet(models, tmp_path / "run", cpu_threads="1") as fleet:
        last, _ = fleet.servers
        with rolling.Load([last.address], "health") as load:
            wait_until(lambda: load.outcome.replies > 100)
            last.stop()
            wait_until(lambda: len(load.outcome.failures) > 100)
    codes = {failure.split(":")[0] for _, failure in load.outcome.failures}
    assert codes == {"UNAVAILABLE"}


def test_connections_end_at_their_age_and_no_request_fails(models: Path, tmp_path: Path) -> None:
    flags = {"cpu_threads": "1", "max_connection_age": "0.5"}
    with rolling.fleet(models, tmp_path / "run", **flags) as fleet:
        server, _ = fleet.servers
        seen: set[str] = set()
        with rolling.Load([server.address], "health") as load:
            deadline = time.monotonic() + 30
            while len(seen) < 5:
                assert time.monotonic() < deadline, seen
                seen |= clients_of(server)
                time.sleep(0.05)
    assert load.outcome.failures == []
    assert load.outcome.replies > 100


def clients_of(server: Server) -> set[str]:
    """The other ends of the connections to its gRPC port."""
    port, established = f"{server.ready['grpc_port']:04X}", "01"
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {row[2] for row in rows if row[1].endswith(f":{port}") and row[3] == established}
