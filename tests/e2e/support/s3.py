"""An S3 service for tests: moto's, with faults."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import requests
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

SECRET = "the-secret-of-the-tests"
_ERROR = "<Error><Code>{code}</Code><Message>{code} for the test</Message></Error>"


@dataclass(eq=False)
class S3:
    """A running service. Requests are path-style: GET /bucket/key."""

    port: int = 0
    # (method, path) of all requests so far.
    requests: list[tuple[str, str]] = field(default_factory=list)
    # Called with (method, path) before a request is answered. Returns None, or the (status, code) of
    # an error to answer with.
    fault: Callable[[str, str], tuple[int, str] | None] = lambda method, path: None

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a server that uses the service."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            aws_access_key_id="tests",
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )

    def put(self, bucket: str, key: str, body: bytes) -> None:
        self.client.put_object(Bucket=bucket, Key=key, Body=body)

    def get(self, bucket: str, key: str) -> bytes:
        return self.client.get_object(Bucket=bucket, Key=key)["Body"].read()

    def put_tree(self, bucket: str, prefix: str, directory: Path) -> None:
        """Writes the files in a directory below a prefix."""
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                self.put(bucket, f"{prefix}/{path.relative_to(directory)}", path.read_bytes())

    def keys(self, bucket: str) -> set[str]:
        listed = self.client.list_objects_v2(Bucket=bucket).get("Contents", [])
        return {entry["Key"] for entry in listed}

    def reads(self) -> list[str]:
        """Returns the paths of the objects whose contents were read, in order."""
        return [path for method, path in self.requests if method == "GET" and path.count("/") > 1]

    def fail(self, count: int, status: int, code: str) -> None:
        """Answers the next `count` requests of a server under test with an error."""
        left = iter(range(count))
        self.fault = lambda method, path: None if next(left, None) is None else (status, code)


@contextmanager
def serving(*buckets: str) -> Iterator[S3]:
    """A service with empty buckets, on a thread of this process."""
    service = S3()
    backend = DomainDispatcherApplication(create_backend_app)

    def answer(environ: dict[str, Any], start_response: Callable) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        of_test = "Boto3" in environ.get("HTTP_USER_AGENT", "") or path.startswith("/moto-api")
        if not of_test:
            service.requests.append((method, path))
            error = service.fault(method, path)
            if error is not None:
                status, code = error
                body = _ERROR.format(code=code).encode()
                start_response(f"{status} {code}", [("Content-Type", "application/xml")])
                return [] if method == "HEAD" else [body]
        return backend(environ, start_response)

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, answer, threaded=True)
    service.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        # Another service of this process may have left objects.
        requests.post(f"{service.environment['AWS_ENDPOINT_URL']}/moto-api/reset", timeout=10)
        for bucket in buckets:
            service.client.create_bucket(Bucket=bucket)
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
