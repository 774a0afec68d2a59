"""DataService of the fake server, with a folder `sets` and a file `train.parquet` of 3 rows."""

from __future__ import annotations

import json

import grpc

from braid import _protocol

_Dataset = _protocol.message("braid.v1.Dataset")


class FakeData:
    """Datasets. rows: whether the number of rows is known."""

    def __init__(self):
        self.rows = True
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
