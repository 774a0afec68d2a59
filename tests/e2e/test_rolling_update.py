"""A rolling update under load: clients see no failure. scripts/drain_test.py does it for longer."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from e2e.support import rolling
from e2e.support.load_balancer import Balancer
from e2e.support.server import ROOT, Server

pytestmark = pytest.mark.serial
TIMES = 3
ALONE_TIMES = 5
# Requests/s of the 1,000 that are offered: compilers and other tests may have most of the machine.
# The script requires all of them.
LEAST_RATE = 100


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
    assert load.outcome.rate > LEAST_RATE


def test_no_request_of_a_plain_client_behind_a_balancer_fails(
    models: Path, tmp_path: Path
) -> None:
    """All connections are past their age, and elsewhere, when the delay is over."""
    flags = {"cpu_threads": "1", "max_connection_age": "0.5", "drain_delay": "2"}
    with rolling.fleet(models, tmp_path / "run", **flags) as fleet:
        with Balancer(fleet.servers) as balancer:
            with rolling.Load([balancer.address], "plain") as load:
                for number in range(TIMES):
                    fleet.replace(fleet.servers[number % 2])
    assert load.outcome.failures == []
    assert load.outcome.rate > LEAST_RATE


@pytest.mark.parametrize(("rate", "code"), [(LEAST_RATE, 0), (1_000_000, 1)])
def test_the_script_requires_its_rate(rate: int, code: int) -> None:
    command = [sys.executable, ROOT / "scripts/drain_test.py", "--times=1", f"--rate={rate}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    assert ", 0 failures\n" in done.stdout
    assert f" requests/s answered; {rate} are required\n" in done.stdout


def test_what_a_server_that_is_alone_refuses_is_worth_another_try(
    models: Path, tmp_path: Path
) -> None:
    """gRPC would answer CANCELLED what comes while it shuts down."""
    with rolling.fleet(models, tmp_path / "run", cpu_threads="1") as fleet:
        alone, _ = fleet.servers
        with rolling.Load([alone.address], "plain", rate=100_000) as load:
            for _ in range(ALONE_TIMES):
                fleet.replace(alone)
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
