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
CALLS = (q.MODEL, 'model!=""', q.INFERENCE)


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
    faults = q.total(q.rate("braid_requests_total", *CALLS, q.FAULTS))
    requests = q.total(q.rate("braid_requests_total", *CALLS))
    return [
        number("Requests", PER_SECOND, "ModelInfer calls that ended.", Query(requests)),
        number("Rows", ROWS_PER_SECOND, "Rows that went through models.",
               Query(q.total(q.rate("braid_inference_samples_total", q.MODEL)))),
        number("p50", SECONDS, "What half of the ModelInfer calls did not exceed.",
               Query(q.quantile(0.5, DURATION, *CALLS, by=()))),
        number("p99", SECONDS, "What 99 % of the ModelInfer calls did not exceed.",
               Query(q.quantile(0.99, DURATION, *CALLS, by=()))),
        number("Faults", RATIO,
               "Calls that ended with a code that blames the server, or its load, over all.",
               Query(f"({faults} or vector(0)) / {requests}"),
               limits=((0.001, YELLOW), (0.01, RED))),
        number("Rows that wait", PLAIN, "In the queues of all chosen models.",
               Query(q.total(q.select("braid_queue_rows", q.MODEL)))),
    ]  # fmt: skip


def replies() -> list:
    codes = q.rate("braid_requests_total", q.MODEL, 'method=~"ModelInfer|ModelStreamInfer"',
                   'code!="OK"')  # fmt: skip
    return [
        graph("Duration", SECONDS, "ModelInfer, from arrival to reply: p50 and p99.",
              Query(q.quantile(0.5, DURATION, *CALLS, by=MODEL), NAME + " p50"),
              Query(q.quantile(0.99, DURATION, *CALLS, by=MODEL), NAME + " p99")),
        graph("Requests", PER_SECOND, "ModelInfer calls that ended.",
              Query(q.total(q.rate("braid_requests_total", *CALLS), *MODEL), NAME), stacked=True),
        graph("Errors by code", PER_SECOND,
              "Inference that did not end with OK. A model without a name: the request was "
              "refused before its model was found.",
              Query(q.total(codes, *MODEL, "code"), NAME + " {{code}}"), stacked=True),
        spread("Durations", SECONDS, "How many ModelInfer calls took how long.",
               Query(q.total(q.rise(f"{DURATION}_bucket", *CALLS), "le"), "{{le}}"), width=24),
    ]  # fmt: skip


def queue() -> list:
    waited = q.total(q.rate(f"{WAIT}_sum", q.MODEL), *MODEL)
    took = q.total(q.rate(f"{DURATION}_sum", *CALLS), *MODEL)
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
