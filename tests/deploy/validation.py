"""Validates manifests with the schemas of their kinds, like an API server."""

from __future__ import annotations

import functools

import jsonschema
import kubernetes_validate
from kubernetes_validate import utils

from deploy.crd_schemas import SCHEMAS

# Caches the definitions, a megabyte that would be read again for every manifest.
utils.schema_contents = functools.cache(utils.schema_contents)


def validate(manifest: dict, version: str) -> None:
    """Raises ValidationError for an invalid field or one that this version does not have."""
    if manifest["kind"] in SCHEMAS:
        jsonschema.validate(manifest, SCHEMAS[manifest["kind"]])
    else:
        kubernetes_validate.validate(manifest, version, strict=True)
