"""In-process TCP proxy whose connections break after a given number of bytes."""

from __future__ import annotations

import socket
import threading


class CuttingProxy:
    """Forwards to `target`, "host:port".

    Cuts connection i, with all data in flight, after cuts[i] bytes in both directions. Later
    connections are not cut.
    """

    def __init__(self, target, cuts):
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._cuts = list(cuts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            budget = self._cuts.pop(0) if self._cuts else None
            self.connections += 1
            _Connection(client, socket.create_connection(self._target), budget)


class _Connection:
    def __init__(self, client, server, budget):
        self._sockets = (client, server)
        self._budget = budget
        self._lock = threading.Lock()
        self._forwarding = 2
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source, sink):
        try:
            while data := source.recv(1 << 16):
                allowed = self._take(len(data))
                sink.sendall(data[:allowed])
                if allowed < len(data):
                    break
        except OSError:
            pass
        for each in self._sockets:  # Wakes the other thread.
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        with self._lock:
            self._forwarding -= 1
            ended = self._forwarding == 0
        # Only closing resets a connection whose peer is still sending. Without a reset, the peer
        # waits for a reader.
        if ended:
            for each in self._sockets:
                each.close()

    def _take(self, size):
        with self._lock:
            if self._budget is None:
                return size
            allowed = min(size, self._budget)
            self._budget -= allowed
            return allowed
