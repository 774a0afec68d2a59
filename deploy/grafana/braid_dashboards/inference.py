"""Dashboard of inference: latency, batching and queues of each model."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from braid_dashboards import queries as q
from braid_dashboards.layout import build, choice
from braid_dashboards.panels import (
    BATCHES_PER_SECOND, PER_SECOND, PLAIN, RATIO, RED, ROWS_PER_SECOND, SECONDS, YELLOW,
    Query, graph, listing, number, spread,
)  # fmt: skip

MODEL = ("model",)
NAME = "{{model}}"
DURATION = "braid_request_duration_seconds"
WAIT = "braid_queue_duration_seconds"
# Excludes requests for unknown models.
REQUESTS = (q.MODEL, 'model!=""', q.INFERENCE)


def dashboard() -> Dashboard:
    return build(
        "braid-inference",
        "Braid / Inference",
        "Each model: latency, batching and queue.",
        {
            "Now": now(),
            "Replies": replies(),
            "Queue and batches": queue(),
            "Models": models(),
        },
        (choice("model", "Model", "braid_model_ready"),),
    )


def now() -> list:
    faults = q.total(q.rate("braid_requests_total", *REQUESTS, q.FAULTS))
    requests = q.total(q.rate("braid_requests_total", *REQUESTS))
    return [
        number("Requests", PER_SECOND,
               "Completed inference requests: ModelInfer calls and each request of a stream.",
               Query(requests)),
        number("Rows", ROWS_PER_SECOND, "Rows processed by all selected models.",
               Query(q.total(q.rate("braid_inference_samples_total", q.MODEL)))),
        number("Latency p50", SECONDS, "Median latency of the requests.",
               Query(q.quantile(0.5, DURATION, *REQUESTS, by=()))),
        number("Latency p99", SECONDS, "99th percentile of the latency of the requests.",
               Query(q.quantile(0.99, DURATION, *REQUESTS, by=()))),
        number("Server errors", RATIO,
               "Fraction of requests that ended with a server or overload error.",
               Query(f"({faults} or vector(0)) / {requests}"),
               limits=((0.001, YELLOW), (0.01, RED))),
        number("Queued rows", PLAIN, "Rows in the queues of all selected models.",
               Query(q.total(q.select("braid_queue_rows", q.MODEL)))),
    ]  # fmt: skip


def replies() -> list:
    failed = q.rate("braid_requests_total", q.MODEL, q.INFERENCE, 'code!="OK"')
    by_code = q.total(failed, *MODEL, "code")
    latency = "From arrival to reply. Replies on a stream keep the order of its requests."
    return [
        graph("Latency p50 by model", SECONDS, latency,
              Query(q.quantile(0.5, DURATION, *REQUESTS, by=MODEL), NAME), width=12, height=11),
        graph("Latency p99 by model", SECONDS, latency,
              Query(q.quantile(0.99, DURATION, *REQUESTS, by=MODEL), NAME), width=12, height=11),
        graph("Requests", PER_SECOND,
              "Completed inference requests: ModelInfer calls and each request of a stream.",
              Query(q.total(q.rate("braid_requests_total", *REQUESTS), *MODEL), NAME),
              stacked=True, width=12, height=11),
        graph("Errors by code", PER_SECOND,
              "Inference requests that did not end with OK. The model of a request is unknown if "
              "the server does not have it.",
              Query(f'label_replace({by_code}, "model", "unknown model", "model", "")',
                    NAME + " {{code}}"), stacked=True, width=12, height=11, calcs=()),
        spread("Latency distribution", SECONDS, "Number of requests by latency.",
               Query(q.total(q.rise(f"{DURATION}_bucket", *REQUESTS), "le"), "{{le}}"), width=24),
    ]  # fmt: skip


def queue() -> list:
    waited = q.total(q.rate(f"{WAIT}_sum", q.MODEL), *MODEL)
    took = q.total(q.rate(f"{DURATION}_sum", *REQUESTS), *MODEL)
    sizes = "braid_batch_size_rows"
    return [
        graph("Queued rows", PLAIN,
              "Rows in the queue of each model. A growing queue means that the load exceeds the "
              "devices' capacity.",
              Query(q.total(q.select("braid_queue_rows", q.MODEL), *MODEL), NAME)),
        graph("Wait in the queue", SECONDS,
              "From arrival in the queue until a worker takes the first row of a request: p50 and "
              "p99.",
              Query(q.quantile(0.5, WAIT, q.MODEL, by=MODEL), NAME + " p50"),
              Query(q.quantile(0.99, WAIT, q.MODEL, by=MODEL), NAME + " p99"), calcs=()),
        graph("Fraction of time in the queue", RATIO,
              "Time in the queue as a fraction of a request's latency. Near 100 %: more devices "
              "help. Near 0: only a faster model helps.",
              Query(q.defined(f"{waited} / {took}"), NAME), most=1),
        graph("Rows per batch", PLAIN, "Size of the batches: mean and p99.",
              Query(q.average(sizes, q.MODEL, by=MODEL), NAME + " mean"),
              Query(q.quantile(0.99, sizes, q.MODEL, by=MODEL), NAME + " p99"), calcs=()),
        graph("Batches", BATCHES_PER_SECOND, "Batches executed.",
              Query(q.total(q.rate(f"{sizes}_count", q.MODEL), *MODEL), NAME)),
        graph("Rows", ROWS_PER_SECOND, "Rows processed by each model.",
              Query(q.total(q.rate("braid_inference_samples_total", q.MODEL), *MODEL), NAME),
              stacked=True),
    ]  # fmt: skip


def models() -> list:
    versions = q.highest(q.select("braid_model_ready", q.MODEL), "instance", "model", "version")
    columns = {
        "model": ("Model", "string"),
        "version": ("Version", "string"),
        "instance": ("Server", "string"),
    }
    share = q.total(q.rate("braid_device_samples_total"), "work")
    return [
        listing("Ready versions", "Models and versions on each server.", columns, Query(versions)),
        graph("Inference and training", ROWS_PER_SECOND,
              "Rows by kind of work. --training_share is the share of a device for training under "
              "full inference load.",
              Query(share, "{{work}}"), stacked=True, width=12),
    ]  # fmt: skip
