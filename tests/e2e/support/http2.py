"""A minimal HTTP/2 client, for behavior that no library allows."""

from __future__ import annotations

import socket
import struct
import threading

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
ACK = 1
_END_HEADERS = 4
MAX_CONCURRENT_STREAMS = 3
CANCEL = 8


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


# The client preface and empty settings.
GREETING = PREFACE + frame(SETTINGS, 0, 0)


def connect(address: str, greeting: bytes = GREETING) -> socket.socket:
    """Connects to "host:port" and sends `greeting`. The caller closes the connection."""
    host, port = address.split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(greeting)
    return connection


def open_call(method: str, stream: int) -> bytes:
    """Returns the frame that opens `stream` for "/package.Service/Method"."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    # Literal header fields without indexing or compression.
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
    return frame(HEADERS, _END_HEADERS, stream, block)


def begin_call(method: str, message_bytes: int, stream: int = 1) -> bytes:
    """Returns the frames that open `stream` for "/package.Service/Method" and start one message."""
    prefix = struct.pack(">BI", 0, message_bytes)
    return open_call(method, stream) + frame(DATA, 0, stream, prefix)


def _text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def data(payload: bytes) -> bytes:
    """Returns a DATA frame for stream 1, at most 16 KiB."""
    return frame(DATA, 0, 1, payload)


class StuckReader:
    """A proxy that forwards everything to the server, but stops reading the replies after `reads`
    bytes, until read_on()."""

    def __init__(self, address: str, reads: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._server = connect(address, b"")
        self._client: socket.socket | None = None
        self._reads = reads
        self._reads_on = threading.Event()
        self._died = False
        self._threads = [threading.Thread(target=self._forward, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def read_on(self) -> None:
        self._reads_on.set()

    def die(self) -> None:
        """Closes like a killed process: the unread data makes the kernel reset the connection."""
        self._died = True
        self._reads_on.set()
        if self._client is not None:
            self._client.shutdown(socket.SHUT_RDWR)  # Wakes the thread that reads.
            self._client.close()
            # A thread in recv() would keep the connection open. Shutting it down instead would only
            # end the client's half of it.
            for thread in self._threads:
                thread.join()
        self._server.close()
        self._listener.close()

    def _forward(self) -> None:
        client, _ = self._listener.accept()
        self._threads.append(threading.Thread(target=self._reply, daemon=True))
        self._client = client
        self._threads[1].start()
        try:
            while piece := self._client.recv(1 << 20):
                self._server.sendall(piece)
        except OSError:
            pass

    def _reply(self) -> None:
        try:
            while self._reads > 0:
                piece = self._server.recv(min(self._reads, 1 << 16))
                self._reads -= len(piece)
                self._client.sendall(piece)
            self._reads_on.wait()
            while not self._died and (piece := self._server.recv(1 << 20)):
                self._client.sendall(piece)
        except OSError:
            pass
