"""Each GPU: what it does, by the driver and by our own workers, and how it is."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from braid_dashboards import queries as q
from braid_dashboards.layout import build, choice
from braid_dashboards.panels import (
    BYTES, BYTES_PER_SECOND, CELSIUS, HERTZ, PLAIN, RATIO, RED, ROWS_PER_SECOND, SECONDS, WATTS,
    YELLOW, Query, bars, graph, listing, states,
)  # fmt: skip

EACH = ("instance", "gpu")
DEVICE = ("job", "instance", "device")
NAME = "{{instance}} GPU {{gpu}}"
DEVICE_NAME = "{{instance}} {{device}}"
UTILIZATION = q.highest(q.select("braid_gpu_utilization_ratio", q.GPU), *EACH)


def dashboard() -> Dashboard:
    return build(
        "braid-gpus",
        "Braid / GPUs",
        "Each GPU: utilization by the driver beside what Braid's workers were busy with, memory, "
        "power, heat, errors.",
        {
            "Utilization": utilization(),
            "What the devices do": work(),
            "Memory": memory(),
            "Power and heat": power(),
            "Errors": errors(),
            "Traffic": traffic(),
        },
        (choice("gpu", "GPU", "braid_gpu_info"),),
    )


def of_each(metric: str, *matchers: str, name: str = NAME, by: tuple[str, ...] = ()) -> Query:
    """A gauge of each GPU."""
    return Query(q.highest(q.select(metric, q.GPU, *matchers), *EACH, *by), name)


def busy(*by: str) -> str:
    """The part of the time that a device's worker worked."""
    return q.with_gpu(q.total(q.rate("braid_device_busy_seconds_total"), *DEVICE, *by))


def utilization() -> list:
    return [
        graph("GPU utilization", RATIO,
              "The part of the time in which at least one kernel ran, by the driver (NVML). It "
              "says nothing of how much of the GPU they used, and counts other processes' too.",
              Query(UTILIZATION, NAME), most=1, width=16),
        bars("GPU utilization now", RATIO, "The same, last seen.",
             Query(UTILIZATION, NAME), most=1),
        graph("Workers busy", RATIO,
              "The part of the time that the worker of each device spent working, copies and waits "
              "for its GPU included. Idle here and utilized above: another process uses the GPU. "
              "Busy here and idle above: the worker waits for the host, as with small kernels.",
              Query(busy(), DEVICE_NAME), most=1, width=16),
        listing("GPUs", "What they are.",
                {
                    "instance": ("Server", "string"),
                    "gpu": ("GPU", "string"),
                    "name": ("Name", "string"),
                    "uuid": ("UUID", "string"),
                    "driver_version": ("Driver", "string"),
                },
                Query(q.highest(q.select("braid_gpu_info", q.GPU), *EACH, "name", "uuid",
                                "driver_version")), width=8),
    ]  # fmt: skip


def work() -> list:
    per_server = ("job", "instance")
    all_busy = f"({busy()})"
    uneven = f"{q.highest(all_busy, *per_server)} - {q.lowest(all_busy, *per_server)}"
    rows = q.total(q.rate("braid_device_samples_total"), *DEVICE, "work")
    return [
        graph("Busy by phase", RATIO,
              "What workers spent their time with, over all chosen devices; 1 is one device. Much "
              "copy_in or copy_out: batches are too small for their bytes. Much reduce or "
              "broadcast: gradients and weights travel more than is computed.",
              Query(q.total(busy("phase"), "phase"), "{{phase}}"), stacked=True),
        graph("Spread between devices", RATIO,
              "The busiest device less the idlest, of each server. It is high where batches are "
              "too small to be split, or one GPU is slower than the others.",
              Query(uneven, "{{instance}}"), most=1),
        graph("Rows", ROWS_PER_SECOND, "Rows that each device worked on.",
              Query(q.with_gpu(rows), DEVICE_NAME + " {{work}}"), stacked=True),
        graph("Rows at once", PLAIN,
              "The mean chunk that a device took at once. GPUs want large ones.",
              Query(q.average("braid_device_chunk_size_rows", by=("instance", "device", "work")),
                    DEVICE_NAME + " {{work}}")),
        graph("Wait for a device", SECONDS,
              "How long 99 of 100 batches and training operations had waited when the device took "
              "them. Devices that are waited for are too few.",
              Query(q.quantile(0.99, "braid_device_queue_duration_seconds",
                               by=("instance", "device", "work")), DEVICE_NAME + " {{work}}")),
        states("Healthy devices",
               "A device is lost when its GPU's context is: its server is not ready any more and "
               "has to be restarted.",
               Query(q.lowest(q.select("braid_device_healthy"), "instance", "device"), DEVICE_NAME),
               zero="lost", one="healthy", bad=0, width=8),
    ]  # fmt: skip


def memory() -> list:
    used, all_of_it = "braid_gpu_memory_used_bytes", "braid_gpu_memory_total_bytes"
    mig_used, mig_all = "braid_gpu_mig_memory_used_bytes", "braid_gpu_mig_memory_total_bytes"
    mig = (*EACH, "mig")
    owners = q.total(q.select("braid_device_memory_bytes"), *DEVICE, "owner")
    return [
        graph("Memory in use", RATIO, "Of all processes, over all that the GPU has.",
              Query(q.ratio(q.select(used, q.GPU), q.select(all_of_it, q.GPU), EACH), NAME),
              most=1, limits=((0.95, RED),)),
        graph("Bytes in use", BYTES, "Of all processes.", of_each(used)),
        graph("Braid's memory by owner", BYTES,
              "What models and trainers keep on each device. Of a GPU, at its first worker, also "
              "allocator, all that LibTorch's tensors take, and cache, what its allocator keeps "
              "free for the next ones.",
              Query(q.with_gpu(owners), DEVICE_NAME + " {{owner}}")),
        graph("Memory's bandwidth in use", RATIO,
              "The part of the time in which memory was read or written, by the driver.",
              of_each("braid_gpu_memory_utilization_ratio"), most=1),
        graph("MIG instances", RATIO, "Memory in use of each MIG instance, over what it has.",
              Query(q.ratio(q.select(mig_used, q.GPU), q.select(mig_all, q.GPU), mig),
                    NAME + " MIG {{mig}}"), most=1),
    ]  # fmt: skip


def power() -> list:
    return [
        graph("Power", WATTS, "What each GPU draws, and what it may draw.",
              of_each("braid_gpu_power_watts"),
              of_each("braid_gpu_power_limit_watts", name=NAME + " limit")),
        graph("Power by energy", WATTS,
              "The mean power, from the counter of the energy: it misses no peak between scrapes.",
              Query(q.total(q.rate("braid_gpu_energy_joules_total", q.GPU), *EACH), NAME)),
        graph("Temperature", CELSIUS, "Of the die.",
              of_each("braid_gpu_temperature_celsius"), limits=((85, YELLOW), (90, RED))),
        graph("Clocks", HERTZ, "Of the multiprocessors (sm) and of the memory.",
              of_each("braid_gpu_clock_hertz", name=NAME + " {{clock}}", by=("clock",))),
        states("Throttled",
               "Why clocks are held down. power_cap is usual under load; the thermal ones, "
               "hardware and power_brake are not.",
               of_each("braid_gpu_throttled", name=NAME + " {{reason}}", by=("reason",)),
               zero="no", one="throttled", bad=1, width=16),
    ]  # fmt: skip


def errors() -> list:
    ecc = q.total(q.rise("braid_gpu_ecc_errors_total", q.GPU), *EACH, "type")
    failed = q.total(q.rise("braid_gpu_sensor_errors_total", q.GPU), *EACH, "sensor")
    xids = q.select("braid_gpu_xid_errors_total", q.GPU)
    return [
        graph("Memory errors", PLAIN,
              "ECC errors. Corrected ones are harmless in small numbers; an uncorrected one has "
              "ended what ran on the GPU.",
              Query(ecc, NAME + " {{type}}")),
        graph("XID errors", PLAIN,
              "Errors that the driver told of since the server's start, by their number in "
              "NVIDIA's catalogue.",
              Query(q.highest(xids, *EACH, "xid"), NAME + " XID {{xid}}")),
        graph("Sensors that fail", PLAIN, "Readings that failed. Their graphs have gaps.",
              Query(failed, NAME + " {{sensor}}")),
    ]  # fmt: skip


def traffic() -> list:
    def bytes_over(link: str) -> Query:
        each = (*EACH, "direction")
        rates = q.total(q.rate(f"braid_gpu_{link}_bytes_total", q.GPU), *each)
        return Query(rates, NAME + " {{direction}}")

    return [
        graph("PCIe", BYTES_PER_SECOND, "Between GPU and host.", bytes_over("pcie"), width=12),
        graph("NVLink", BYTES_PER_SECOND, "Between GPUs, over all links.", bytes_over("nvlink"),
              width=12),
    ]  # fmt: skip
