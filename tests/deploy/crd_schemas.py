"""Schemas of the custom resources that the chart creates, limited to the fields that it uses.

Kubernetes's own schemas do not include them. Unlisted fields are rejected, to catch misspelt ones.
Before the chart uses another field, check the operator's API and add the field here.
"""

from __future__ import annotations


def _object(required: tuple[str, ...] = (), /, **properties: dict) -> dict:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(required),
    }


def _list(items: dict) -> dict:
    return {"type": "array", "minItems": 1, "items": items}


_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_COUNT = {"type": "integer", "minimum": 1}
_SELECTOR = _object(("matchLabels",), matchLabels=_TEXTS)
_RELABELING = _object(
    ("sourceLabels", "targetLabel"),
    sourceLabels=_list(_TEXT),
    separator=_TEXT,
    targetLabel=_TEXT,
)
_ENDPOINTS = _list(_object(("port",), port=_TEXT, interval=_TEXT, relabelings=_list(_RELABELING)))
_RULE = _object(
    ("expr",), alert=_TEXT, record=_TEXT, expr=_TEXT, labels=_TEXTS, annotations=_TEXTS,
    **{"for": _TEXT, "keep_firing_for": _TEXT},
)  # fmt: skip
_GROUP = _object(("name", "rules"), name=_TEXT, interval=_TEXT, rules=_list(_RULE))
_TRIGGER = _object(
    ("type", "metadata"),
    type={"const": "prometheus"},
    metricType={"enum": ["AverageValue", "Value"]},
    metadata=_object(
        ("serverAddress", "query", "threshold"),
        serverAddress=_TEXT,
        query=_TEXT,
        threshold={"type": "string", "pattern": r"^[0-9.]+$"},
    ),
)


def _resource(api_version: str, spec: dict) -> dict:
    return _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": api_version},
        kind=_TEXT,
        metadata=_object(("name",), name=_TEXT, labels=_TEXTS),
        spec=spec,
    )


_OPERATOR = "monitoring.coreos.com/v1"
SCHEMAS = {
    "ServiceMonitor": _resource(
        _OPERATOR, _object(("selector", "endpoints"), selector=_SELECTOR, endpoints=_ENDPOINTS)
    ),
    "PodMonitor": _resource(
        _OPERATOR,
        _object(
            ("selector", "podMetricsEndpoints"), selector=_SELECTOR, podMetricsEndpoints=_ENDPOINTS
        ),
    ),
    "PrometheusRule": _resource(_OPERATOR, _object(("groups",), groups=_list(_GROUP))),
    "ScaledObject": _resource(
        "keda.sh/v1alpha1",
        _object(
            ("scaleTargetRef", "triggers"),
            scaleTargetRef=_object(("name",), name=_TEXT),
            minReplicaCount=_COUNT,
            maxReplicaCount=_COUNT,
            triggers=_list(_TRIGGER),
        ),
    ),
}
