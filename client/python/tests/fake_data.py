"""DataService of the fake server, with a folder `sets` and a file `train.parquet` of 3 rows."""

from __future__ import annotations

import hashlib
import json

import grpc

from braid import _protocol

_Dataset = _protocol.message("braid.v1.Dataset")


class FakeData:
    """Datasets.

    rows: whether the number of rows is known.
    stored: {name: {path: bytes}} of the datasets that were uploaded.
    breaks: after how many messages each of the next uploads breaks.
    overtakes: dataset that another client stores before the next upload, which thereby ends.
    pieces: messages with data that were received.
    """

    def __init__(self):
        self.rows = True
        self.stored = {}
        self.breaks = []
        self.overtakes = None
        self.pieces = 0
        self._uploads = {}
        self.values = [
            {"id": 1, "image": [0.5] * 32, "name": "first"},
            {"id": 2, "image": [0, 1], "name": "second"},
            {"id": 3, "image": [None, 1], "name": None},
        ]

    def GetDataset(self, request, context):
        return _protocol.DATA["GetDataset"].response(dataset=self._dataset(request.path, context))

    def ListDatasets(self, request, context):
        reply = _protocol.DATA["ListDatasets"].response()
        if not request.directory:
            reply.entries.add(name="sets", is_directory=True)
            reply.entries.add(name="train.parquet", bytes=1536)
        elif request.directory != "sets":
            context.abort(
                grpc.StatusCode.NOT_FOUND, f"directory: there is no {request.directory!r}"
            )
        return reply

    def PreviewDataset(self, request, context):
        dataset = self._dataset(request.path, context)
        names = list(request.columns) or [column.name for column in dataset.columns]
        rows = [{name: row[name] for name in names} for row in self.values[: request.rows]]
        return _protocol.DATA["PreviewDataset"].response(
            dataset=dataset, rows=[json.dumps(row) for row in rows]
        )

    def StartDatasetUpload(self, request, context):
        reply = _protocol.DATA["StartDatasetUpload"].response(path=f"/sets/{request.dataset}")
        existing = self.stored.get(request.dataset)
        if existing is not None:
            sums = {path: hashlib.sha256(data).hexdigest() for path, data in existing.items()}
            reply.complete = sums == {file.path: file.sha256 for file in request.files}
            if reply.complete:
                return reply
            if not request.overwrite:
                context.abort(grpc.StatusCode.ALREADY_EXISTS, f"dataset: {request.dataset!r} (`overwrite`)")
        reply.upload = request.dataset
        _, received = self._uploads.setdefault(
            request.dataset, (request, [b""] * len(request.files))
        )
        reply.received_bytes.extend(map(len, received))
        return reply

    def PutDataset(self, requests, context):
        upload = ""
        limit = self.breaks.pop(0) if self.breaks else None
        for index, piece in enumerate(requests):
            if index == limit:
                context.abort(grpc.StatusCode.UNAVAILABLE, "broken")
            upload = upload or piece.upload
            if self.overtakes is not None:
                self.stored[upload], self.overtakes = self.overtakes, None
                del self._uploads[upload]
                context.abort(grpc.StatusCode.NOT_FOUND, f"upload: there is no {upload!r}")
            if piece.data:  # A message without data only names the upload.
                received = self._uploads[upload][1]
                assert piece.offset == len(received[piece.file])
                received[piece.file] += piece.data
                self.pieces += 1
        request, received = self._uploads.pop(upload)
        result = 2 if upload in self.stored else 1
        self.stored[upload] = dict(zip((file.path for file in request.files), received))
        return _protocol.DATA["PutDataset"].response(path=f"/sets/{upload}", result=result)

    def DeleteDataset(self, request, context):
        if self.stored.pop(request.dataset, None) is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"dataset: there is no {request.dataset!r}")
        return _protocol.DATA["DeleteDataset"].response()

    def _dataset(self, path, context):
        if path != "train.parquet":
            context.abort(grpc.StatusCode.NOT_FOUND, f"path: there is no {path!r}")
        dataset = _Dataset(path=path, format="Parquet")
        dataset.columns.add(name="id", type="int64", datatype="INT64")
        dataset.columns.add(name="image", type="list<item: float>", datatype="FP32", shape=[-1])
        dataset.columns.add(name="name", type="string")
        if self.rows:
            dataset.rows = len(self.values)
        return dataset
