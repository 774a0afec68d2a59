"""Datasets of a client against a fake server."""

import pytest

import braid


def test_list(client):
    assert client.data.list_datasets() == [
        braid.DatasetEntry("sets", True, 0), braid.DatasetEntry("train.parquet", False, 1536),
    ]  # fmt: skip
    assert client.data.list_datasets("sets") == []
    with pytest.raises(braid.NotFound):
        client.data.list_datasets("none")


def test_get(client, server):
    dataset = client.data.get("train.parquet")
    assert (dataset.path, dataset.format, dataset.rows) == ("train.parquet", "Parquet", 3)
    assert dataset.columns == (
        braid.Column("id", "int64", "INT64", ()),
        braid.Column("image", "list<item: float>", "FP32", (-1,)),
        braid.Column("name", "string", "", ()),
    )
    server.data.rows = False
    assert client.data.get("train.parquet").rows is None
    with pytest.raises(braid.NotFound):
        client.data.get("none.parquet")


def test_preview(client):
    preview = client.data.preview("train.parquet", columns=["name", "id"], rows=2)
    assert preview.dataset == client.data.get("train.parquet")
    assert preview.rows == [{"name": "first", "id": 1}, {"name": "second", "id": 2}]
    assert client.data.preview("train.parquet").rows[2]["image"] == [None, 1]
    with pytest.raises(ValueError, match="columns: 'id' "):
        client.data.preview("train.parquet", columns="id")
    with pytest.raises(ValueError, match="rows: 0 "):
        client.data.preview("train.parquet", rows=0)
