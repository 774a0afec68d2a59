"""Whether an API server would take a manifest, by the schemas of its kind."""

from __future__ import annotations

import functools

import jsonschema
import kubernetes_validate
from kubernetes_validate import utils

from deploy.crd_schemas import SCHEMAS

# It reads a megabyte of definitions anew for every manifest.
utils.schema_contents = functools.cache(utils.schema_contents)


def validate(manifest: dict, version: str) -> None:
    """ValidationError if there is a field that is wrong, or that this version does not know."""
    if manifest["kind"] in SCHEMAS:
        jsonschema.validate(manifest, SCHEMAS[manifest["kind"]])
    else:
        kubernetes_validate.validate(manifest, version, strict=True)
