"""Rolling update under load without failed requests. scripts/long/drain_test.py runs it for longer."""

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
# Expected requests/s of the 1,000 that are offered: other processes may use most of the machine.
# The script requires all of them.
LEAST_RATE = 100


@pytest.fixture
def models(repository: Path, tmp_path: Path) -> Path:
    shutil.copytree(repository / "mlp", tmp_path / "models/mlp")
    return tmp_path / "models"


@pytest.mark.parametrize(("client", "delay"), [("health", "1"), ("retry", "0")])
def test_rolling_update_fails_no_request(models: Path, tmp_path: Path, client: str, delay: str) -> None:
    """Clients that watch health need the drain delay. Clients that retry do not."""
    with rolling.fleet(models, tmp_path / "run", cpu_threads="1", drain_delay=delay) as fleet:
        with rolling.Load(fleet.addresses, client) as load:
            for number in range(TIMES):
                fleet.replace(fleet.servers[number % 2])
    assert load.outcome.failures == []
    assert load.outcome.rate > LEAST_RATE


def test_rolling_update_behind_a_load_balancer_fails_no_request(
    models: Path, tmp_path: Path
) -> None:
    """After the delay, all connections have exceeded their maximum age and moved."""
    flags = {"cpu_threads": "1", "max_connection_age": "0.5", "drain_delay": "2"}
    with rolling.fleet(models, tmp_path / "run", **flags) as fleet:
        with Balancer(fleet.servers) as balancer:
            with rolling.Load([balancer.address], "plain") as load:
                for number in range(TIMES):
                    fleet.replace(fleet.servers[number % 2])
    assert load.outcome.failures == []
    assert load.outcome.rate > LEAST_RATE


@pytest.mark.parametrize(("rate", "code"), [(LEAST_RATE, 0), (1_000_000, 1)])
def test_script_requires_its_rate(rate: int, code: int) -> None:
    command = [sys.executable, ROOT / "scripts/long/drain_test.py", "--times=1", f"--rate={rate}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    assert ", 0 failures\n" in done.stdout
    assert f" requests/s answered; {rate} are required\n" in done.stdout


def test_rejections_of_a_single_server_are_retryable(
    models: Path, tmp_path: Path
) -> None:
    """gRPC would answer CANCELLED to requests that arrive during shutdown."""
    with rolling.fleet(models, tmp_path / "run", cpu_threads="1") as fleet:
        alone, _ = fleet.servers
        with rolling.Load([alone.address], "plain", rate=100_000) as load:
            for _ in range(ALONE_TIMES):
                fleet.replace(alone)
    codes = {failure.split(":")[0] for _, failure in load.outcome.failures}
    assert codes == {"UNAVAILABLE"}


def test_maximum_connection_age_fails_no_request(models: Path, tmp_path: Path) -> None:
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
    """Returns the peers of the connections to its gRPC port."""
    port, established = f"{server.ready['grpc_port']:04X}", "01"
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {row[2] for row in rows if row[1].endswith(f":{port}") and row[3] == established}
