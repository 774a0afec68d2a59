"""Tests of the notes that `helm install` prints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from deploy.rendering import CHART, MATRIX, MINIMAL, merge, render


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a chart with the notes in a ConfigMap, because `helm template` omits them."""
    copy = tmp_path_factory.mktemp("notes") / "braid"
    shutil.copytree(CHART, copy)
    notes = (copy / "templates/NOTES.txt").read_text()
    (copy / "templates/NOTES.txt").unlink()
    (copy / "templates/_notes.tpl").write_text('{{ define "notes" }}' + notes + "{{ end }}")
    (copy / "templates/notes.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: notes\n"
        'data:\n  notes: |-\n    {{- include "notes" . | nindent 4 }}\n'
    )
    return copy


def notes(chart: Path, values: dict | Path) -> str:
    return render(values, chart=chart).of("ConfigMap", "notes")["data"]["notes"]


def minimal(chart: Path, more: dict) -> str:
    return notes(chart, merge(MINIMAL, more))


@pytest.mark.parametrize("values", MATRIX, ids=lambda path: path.name)
def test_notes_render_for_all_values(chart: Path, values: Path) -> None:
    assert "-headless.models.svc:8001" in notes(chart, values)


def test_notes_list_addresses(chart: Path) -> None:
    text = minimal(chart, {})
    assert "gRPC with TLS" in text
    assert "dns:///braid-headless.models.svc:8001" in text
    trainers = minimal(chart, {"replicas": 3, "training": {"enabled": True}})
    assert "braid-0.braid-headless.models.svc:8001" in trainers
    assert "numbered 0 to 2" in trainers


def test_notes_name_the_image(chart: Path) -> None:
    build = "build the image braid:0.1.0 as deploy/docker/README.md says"
    assert build in " ".join(minimal(chart, {}).split())
    pushed = minimal(chart, {"image": {"repository": "registry.example.com/braid", "tag": "1-cpu"}})
    assert "image registry.example.com/braid:1-cpu" in pushed
    assert "deploy/docker" not in pushed


def test_notes_show_a_client_and_the_test(chart: Path) -> None:
    server = "braid --server=braid.models.svc:8001"
    text = minimal(chart, {})
    assert f"  {server} --tls --ca=ca.crt --token_file=token models\n" in text
    assert '  - podSelector:\n      matchLabels:\n        braid-client: "true"' in text
    assert "set test.model and test.inputs" in text
    mutual = {"auth": {"tokensSecret": "", "certificatesSecret": "a"}, "tls": {"clientCASecret": "b"}}
    certificate = "--cert=tls.crt --key=tls.key"
    assert f"  {server} --tls --ca=ca.crt {certificate} models\n" in minimal(chart, mutual)
    open_access = {
        "auth": {"tokensSecret": "", "allowUnauthenticated": True},
        "tls": {"secretName": ""},
        "networkPolicy": {"enabled": False},
        "test": {"model": "mlp", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4]}]},
    }
    text = minimal(chart, open_access)
    assert f"  {server} models\n" in text
    assert "podSelector" not in text
    assert "  helm --namespace models test braid\n" in text


def test_notes_list_the_ingress(chart: Path) -> None:
    ingress = {"enabled": True, "hosts": [{"host": "braid.example.com"}]}
    plaintext = minimal(chart, {"ingress": ingress})
    assert "  braid.example.com\n      from outside, through the Ingress (without TLS" in plaintext
    encrypted = minimal(chart, {"ingress": {**ingress, "tls": [{"secretName": "a"}]}})
    assert "from outside, through the Ingress\n" in encrypted
    assert "Ingress" not in minimal(chart, {})


def test_notes_warn_about_open_access(chart: Path) -> None:
    protected = minimal(chart, {})
    assert "WARNING" not in protected
    assert "only clients that networkPolicy.clients selects" in protected
    consent = {
        "auth": {"tokensSecret": "", "allowUnauthenticated": True},
        "networkPolicy": {"enabled": False},
    }
    exposed = minimal(chart, {**consent, "tls": {"secretName": ""}})
    assert "gRPC in plaintext" in exposed
    assert "WARNING: any client that reaches port 8001 may use and train models" in exposed
    assert "No network policy limits access" in exposed
    mutual = minimal(chart, {**consent, "tls": {"clientCASecret": "ca"}})
    assert "WARNING: any client with a certificate of tls.clientCASecret may" in mutual
    meshed = minimal(chart, {"tls": {"secretName": "", "terminatedInFront": True}})
    assert "WARNING: the server accepts tokens in plaintext" in meshed
    containers = {"claimName": "", "initContainers": [{"name": "a", "image": "b"}]}
    assert "connect only to DNS" in minimal(chart, {"models": containers})
