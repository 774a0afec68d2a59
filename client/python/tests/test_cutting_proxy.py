"""Test of the proxy that other tests use."""

import socket

import pytest
from cutting_proxy import CuttingProxy


def test_cut_resets_a_client_that_is_sending():
    """A client whose data nobody reads any more would wait forever."""
    with socket.create_server(("127.0.0.1", 0)) as target:
        address = f"127.0.0.1:{target.getsockname()[1]}"
        with CuttingProxy(address, [1 << 16]) as proxy:
            port = int(proxy.address.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                with pytest.raises(ConnectionError):
                    while True:
                        client.sendall(bytes(1 << 20))
