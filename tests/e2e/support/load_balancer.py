"""A TCP load balancer like a Kubernetes Service."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request

from e2e.support.server import Server

LOOK_SECONDS = 0.05


class Balancer:
    """Context manager. Forwards connections to `address` to the ready servers in turn. Polls their
    /readyz. An open connection stays on its server."""

    def __init__(self, servers: list[Server]) -> None:
        self._servers = servers
        self._ready = list(servers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._accept, self._look)]

    def __enter__(self) -> Balancer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _look(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self._ready = [server for server in self._servers if _is_ready(server)]

    def _accept(self) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # Stopped.
            number += 1
            ready = self._ready
            host, _, port = ready[number % len(ready)].address.partition(":")
            server = socket.create_connection((host, int(port)))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for side in (source, sink):
            side.close()


def _is_ready(server: Server) -> bool:
    try:
        with urllib.request.urlopen(server.metrics_url.replace("/metrics", "/readyz"), timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False
