"""Each model: how fast it answers, how it is batched, and what keeps it waiting."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from braid_dashboards import queries as q
from braid_dashboards.layout import build, choice
from braid_dashboards.panels import (
    PER_SECOND, PLAIN, RATIO, RED, ROWS_PER_SECOND, SECONDS, YELLOW,
    Query, graph, listing, number, spread,
)  # fmt: skip

MODEL = ("model",)
NAME = "{{model}}"
DURATION = "braid_request_duration_seconds"
WAIT = "braid_queue_duration_seconds"
# Not those that named no model that is served.
REQUESTS = (q.MODEL, 'model!=""', q.INFERENCE)


def dashboard() -> Dashboard:
    return build(
        "braid-inference",
        "Braid / Inference",
        "Each model: how fast it answers, how it is batched, what keeps it waiting.",
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
               "Inference requests that ended: ModelInfer calls, and each request of a stream.",
               Query(requests)),
        number("Rows", ROWS_PER_SECOND, "Rows that went through models.",
               Query(q.total(q.rate("braid_inference_samples_total", q.MODEL)))),
        number("p50", SECONDS, "What half of the requests did not exceed.",
               Query(q.quantile(0.5, DURATION, *REQUESTS, by=()))),
        number("p99", SECONDS, "What 99 % of the requests did not exceed.",
               Query(q.quantile(0.99, DURATION, *REQUESTS, by=()))),
        number("Faults", RATIO,
               "Requests that ended with a code that blames the server, or its load, over all.",
               Query(f"({faults} or vector(0)) / {requests}"),
               limits=((0.001, YELLOW), (0.01, RED))),
        number("Rows that wait", PLAIN, "In the queues of all chosen models.",
               Query(q.total(q.select("braid_queue_rows", q.MODEL)))),
    ]  # fmt: skip


def replies() -> list:
    codes = q.rate("braid_requests_total", q.MODEL, q.INFERENCE, 'code!="OK"')
    return [
        graph("Duration", SECONDS,
              "From arrival to reply: p50 and p99. A streamed request is answered after those "
              "before it on its stream.",
              Query(q.quantile(0.5, DURATION, *REQUESTS, by=MODEL), NAME + " p50"),
              Query(q.quantile(0.99, DURATION, *REQUESTS, by=MODEL), NAME + " p99")),
        graph("Requests", PER_SECOND,
              "Inference requests that ended: ModelInfer calls, and each request of a stream.",
              Query(q.total(q.rate("braid_requests_total", *REQUESTS), *MODEL), NAME),
              stacked=True),
        graph("Errors by code", PER_SECOND,
              "Inference that did not end with OK. A model without a name: the request was "
              "refused before its model was found.",
              Query(q.total(codes, *MODEL, "code"), NAME + " {{code}}"), stacked=True),
        spread("Durations", SECONDS, "How many requests took how long.",
               Query(q.total(q.rise(f"{DURATION}_bucket", *REQUESTS), "le"), "{{le}}"), width=24),
    ]  # fmt: skip


def queue() -> list:
    waited = q.total(q.rate(f"{WAIT}_sum", q.MODEL), *MODEL)
    took = q.total(q.rate(f"{DURATION}_sum", *REQUESTS), *MODEL)
    sizes = "braid_batch_size_rows"
    return [
        graph("Rows that wait", PLAIN,
              "In the queue of each model. One that only grows means that more is asked than the "
              "devices can do.",
              Query(q.total(q.select("braid_queue_rows", q.MODEL), *MODEL), NAME)),
        graph("Wait in the queue", SECONDS,
              "From arrival in the queue until a worker took the first of a request's rows: p50 "
              "and p99.",
              Query(q.quantile(0.5, WAIT, q.MODEL, by=MODEL), NAME + " p50"),
              Query(q.quantile(0.99, WAIT, q.MODEL, by=MODEL), NAME + " p99")),
        graph("Part of the time spent waiting", RATIO,
              "The time in the queue over the time of the whole request. Near 1: more devices "
              "would help. Near 0: only a faster model would.",
              Query(f"{waited} / {took}", NAME), most=1),
        graph("Rows of a batch", PLAIN,
              "The mean of the batches that were run, and what 99 % of them did not exceed.",
              Query(q.average(sizes, q.MODEL, by=MODEL), NAME + " mean"),
              Query(q.quantile(0.99, sizes, q.MODEL, by=MODEL), NAME + " p99")),
        graph("Batches", "suffix: batches/s", "Batches that were run.",
              Query(q.total(q.rate(f"{sizes}_count", q.MODEL), *MODEL), NAME)),
        graph("Rows", ROWS_PER_SECOND, "Rows that went through each model.",
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
        listing("Versions that are served", "What is served where.", columns, Query(versions)),
        graph("Inference and training", ROWS_PER_SECOND,
              "What the devices work on. --training_share says how much of a device training "
              "gets while inference wants all of it.",
              Query(share, "{{work}}"), stacked=True, width=12),
    ]  # fmt: skip
