// Shows status.json, which it reads every two seconds. The server counts since its start; rates,
// shares of time and quantiles are those between two samples. Names are set as text, never as HTML.
"use strict";

const INTERVAL_MS = 2000;
const TIMEOUT_MS = 10_000;
const UNKNOWN = "–";
const MAX_PHASES = 3;
const STATE_CLASSES = {
  RUNNING: "good",
  QUEUED: "wait",
  PAUSED: "wait",
  SUCCEEDED: "dim",
  CANCELLED: "dim",
  FAILED: "bad",
};

// Text of figures. null: unknown.

function rateText(rate) {
  if (rate === null) {
    return UNKNOWN;
  }
  return rate > 0 && rate < 10 ? rate.toFixed(1) : countText(Math.round(rate));
}

function countText(count) {
  return count === null ? UNKNOWN : count.toLocaleString("en-US");
}

function percentText(share) {
  return share === null ? UNKNOWN : `${(100 * share).toFixed(0)} %`;
}

function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit + 1 < units.length) {
    bytes /= 1024;
    ++unit;
  }
  return `${bytes.toFixed(unit ? 1 : 0)} ${units[unit]}`;
}

function latencyText(seconds) {
  if (seconds === null) {
    return UNKNOWN;
  }
  const [value, unit] = seconds < 0.9995 ? [seconds * 1e3, "ms"] : [seconds, "s"];
  return `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${unit}`;
}

function lossText(loss) {
  if (loss === null) {
    return UNKNOWN;
  }
  const size = Math.abs(loss);
  return size !== 0 && (size < 1e-3 || size >= 1e4) ? loss.toExponential(3) : loss.toFixed(4);
}

function durationText(seconds) {
  const whole = Math.max(Math.round(seconds), 0);
  const two = (number) => String(number).padStart(2, "0");
  const days = Math.floor(whole / 86_400);
  const hours = Math.floor((whole / 3600) % 24);
  const minutes = Math.floor((whole / 60) % 60);
  const time = `${days || hours ? `${hours}:${two(minutes)}` : minutes}:${two(whole % 60)}`;
  return days ? `${days} d ${time}` : time;
}

// Figures of a sample `now`. `before`: the sample before; null: none of this run of the server.

function rateOf(now, before, seconds) {
  return before === null || seconds <= 0 ? null : Math.max(now - before, 0) / seconds;
}

// Returns the quantile of the requests between two histograms in seconds. Interpolates within a
// bucket, as Prometheus does. Beyond the last bound, returns that bound.
function quantile(share, bounds, now, before) {
  const counts = now.map((count, bucket) => Math.max(count - before[bucket], 0));
  const rank = share * counts.reduce((sum, count) => sum + count, 0);
  let below = 0;
  for (let bucket = 0; bucket < bounds.length; ++bucket) {
    if (counts[bucket] > 0 && below + counts[bucket] >= rank) {
      const low = bucket > 0 ? bounds[bucket - 1] : 0;
      return low + (bounds[bucket] - low) * ((rank - below) / counts[bucket]);
    }
    below += counts[bucket];
  }
  return rank > 0 ? bounds[bounds.length - 1] : null;
}

function deviceFigures(device, before, seconds) {
  let phases = null;
  if (before !== null && seconds > 0) {
    phases = Object.entries(device.busy_seconds)
      .map(([phase, busy]) => [phase, Math.max(busy - before.busy_seconds[phase], 0) / seconds])
      .sort((a, b) => b[1] - a[1]);
  }
  return {
    ...device,
    // A phase counts when it ends, so a short interval may have more than its own length.
    busy: phases && Math.min(phases.reduce((sum, [, share]) => sum + share, 0), 1),
    phases: (phases ?? [])
      .filter(([, share]) => share >= 0.005)
      .slice(0, MAX_PHASES)
      .map(([phase, share]) => `${phase} ${percentText(share)}`)
      .join(", "),
    rowsPerSecond: rateOf(device.rows, before && before.rows, seconds),
  };
}

function modelFigures(model, before, seconds, bounds) {
  // The counters of a model start again when it is loaded again.
  const zero = { requests: 0, failures: 0, rows: 0, durations: model.durations.map(() => 0) };
  const old = before !== null && before.requests > model.requests ? zero : before;
  const quantileOf = (share) => old && quantile(share, bounds, model.durations, old.durations);
  return {
    ...model,
    requestsPerSecond: rateOf(model.requests, old && old.requests, seconds),
    failuresPerSecond: rateOf(model.failures, old && old.failures, seconds),
    rowsPerSecond: rateOf(model.rows, old && old.rows, seconds),
    p50: quantileOf(0.5),
    p99: quantileOf(0.99),
  };
}

function jobFigures(job) {
  const runs = job.state === "RUNNING" && job.rows_per_second > 0 && job.total_rows > 0;
  return {
    ...job,
    done: job.total_rows > 0 ? job.rows / job.total_rows : null,
    rowsPerSecond: job.state === "RUNNING" ? job.rows_per_second : null,
    secondsLeft: runs ? (job.total_rows - job.rows) / job.rows_per_second : null,
  };
}

function figuresOf(now, before) {
  if (before !== null && before.uptime_seconds > now.uptime_seconds) {
    before = null; // The server has started again.
  }
  const seconds = before === null ? 0 : now.uptime_seconds - before.uptime_seconds;
  const find = (list, name) => (before && before[list].find((each) => each.name === name)) ?? null;
  return {
    devices: now.devices.map((device) =>
      deviceFigures(device, find("devices", device.name), seconds),
    ),
    models: now.models.map((model) =>
      modelFigures(model, find("models", model.name), seconds, now.duration_bounds_seconds),
    ),
    trainers: now.trainers.map((trainer) => {
      const old = find("trainers", trainer.name);
      // A restored trainer may be at an earlier step.
      const step = old === null || old.step > trainer.step ? null : old.step;
      return { ...trainer, stepsPerSecond: rateOf(trainer.step, step, seconds) };
    }),
    jobs: (now.jobs ?? []).map(jobFigures),
  };
}

// Tables. A cell is a text, or {text, className, bar}; bar: a share from 0 to 1, drawn before the
// text.

function jobsNote({ jobs, job_counts: counts }) {
  if (jobs === null) {
    return "";
  }
  const states = Object.entries(counts);
  const all = states.reduce((sum, [, count]) => sum + count, 0);
  const notes = states.map(([state, count]) => `${countText(count)} ${state.toLowerCase()}`);
  return notes.join(", ") + (jobs.length < all ? ` (${countText(jobs.length)} shown)` : "");
}

const NAME = "name";
const NUMBER = "number";

const SECTIONS = [
  {
    id: "devices",
    title: "Devices",
    key: (device) => device.name,
    note: (sample) => countText(sample.devices.length),
    empty: () => "No devices.",
    columns: [
      ["device", "", (device) => device.name],
      [
        "busy",
        "",
        (device) =>
          device.healthy
            ? { text: percentText(device.busy), bar: device.busy ?? 0 }
            : { text: "lost", className: "bad" },
      ],
      ["phases", "", (device) => device.phases],
      ["rows/s", NUMBER, (device) => rateText(device.rowsPerSecond)],
      [
        "memory",
        "",
        ({ memory_bytes: used, memory_total_bytes: total }) =>
          total === null
            ? bytesText(used)
            : { text: `${bytesText(used)} of ${bytesText(total)}`, bar: used / total },
      ],
      ["hardware", NAME, (device) => device.hardware || device.kind],
    ],
  },
  {
    id: "models",
    title: "Models",
    key: (model) => model.name,
    note: (sample) => countText(sample.models.length),
    empty: () => "No models are served.",
    columns: [
      ["model", NAME, (model) => model.name],
      ["versions", NUMBER, (model) => model.versions.join(", ")],
      ["requests/s", NUMBER, (model) => rateText(model.requestsPerSecond)],
      [
        "failed/s",
        NUMBER,
        ({ failuresPerSecond: rate }) => ({ text: rateText(rate), className: rate ? "bad" : "" }),
      ],
      ["rows/s", NUMBER, (model) => rateText(model.rowsPerSecond)],
      ["p50", NUMBER, (model) => latencyText(model.p50)],
      ["p99", NUMBER, (model) => latencyText(model.p99)],
      ["rows in queue", NUMBER, (model) => countText(model.queue_rows)],
    ],
  },
  {
    id: "trainers",
    title: "Trainers",
    key: (trainer) => trainer.name,
    note: (sample) => countText(sample.trainers.length),
    empty: () => "No trainers.",
    columns: [
      ["trainer", NAME, (trainer) => trainer.name],
      ["model", NAME, (trainer) => trainer.model],
      [
        "state",
        "",
        ({ failed }) => ({ text: failed ? "failed" : "running", className: failed ? "bad" : "good" }),
      ],
      ["step", NUMBER, (trainer) => countText(trainer.step)],
      ["steps/s", NUMBER, (trainer) => rateText(trainer.stepsPerSecond)],
      ["loss", NUMBER, (trainer) => lossText(trainer.loss)],
      ["learning rate", NUMBER, (trainer) => String(Number(trainer.lr.toPrecision(3)))],
      ["memory", NUMBER, (trainer) => bytesText(trainer.memory_bytes)],
      ["devices", NAME, (trainer) => trainer.devices.join(", ")],
    ],
  },
  {
    id: "jobs",
    title: "Jobs",
    key: (job) => job.id,
    note: jobsNote,
    empty: (sample) => sample.jobs_error || "No jobs.",
    columns: [
      ["job", NAME, (job) => job.id],
      ["kind", "", (job) => job.kind],
      ["model", NAME, (job) => job.model],
      ["state", "", (job) => ({ text: job.state, className: STATE_CLASSES[job.state] })],
      ["done", "", (job) => ({ text: percentText(job.done), bar: job.done ?? 0 })],
      ["loss", NUMBER, (job) => lossText(job.loss)],
      ["rows/s", NUMBER, (job) => rateText(job.rowsPerSecond)],
      ["left", NUMBER, ({ secondsLeft: left }) => (left === null ? UNKNOWN : durationText(left))],
    ],
  },
];

function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = className;
  return made;
}

// Changes an element only where it differs, so that a selection of text stays.
function setText(target, text) {
  if (target.textContent !== text) {
    target.textContent = text;
  }
}

class Cell {
  constructor(tag, className) {
    this.element = element(tag, "", className);
    this.text = this.element.appendChild(element("span"));
    this.bar = null;
  }

  set(value) {
    const { text, className = "", bar = null } = typeof value === "string" ? { text: value } : value;
    setText(this.text, text);
    this.text.className = className;
    if (bar === null) {
      this.bar?.remove();
      this.bar = null;
      return;
    }
    if (this.bar === null) {
      this.bar = element("progress");
      this.bar.ariaHidden = "true"; // The text says the same.
      this.element.prepend(this.bar);
    }
    this.bar.value = bar;
  }
}

class Section {
  constructor(options) {
    this.options = options;
    this.rows = new Map(); // Key of a row: {element, cells}.
    const heading = element("h2", options.title);
    this.note = heading.appendChild(element("span"));
    this.empty = element("p", "", "note");
    this.body = element("tbody");
    this.table = element("table");
    this.table.append(element("thead"), this.body);
    this.table.tHead.append(element("tr"));
    for (const [title, className] of options.columns) {
      const column = element("th", title, className === NUMBER ? NUMBER : "");
      column.scope = "col";
      this.table.tHead.rows[0].append(column);
    }
    const box = element("div", "", "box");
    box.tabIndex = 0; // So that keys can scroll it.
    box.append(this.table, this.empty);
    this.element = element("section");
    this.element.id = options.id;
    this.element.append(heading, box);
  }

  show(sample, figures) {
    setText(this.note, this.options.note(sample));
    setText(this.empty, figures.length === 0 ? this.options.empty(sample) : "");
    this.empty.hidden = figures.length > 0;
    this.table.hidden = figures.length === 0;
    const rows = new Map();
    figures.forEach((figure, index) => {
      const key = this.options.key(figure);
      const row = this.rows.get(key) ?? this.makeRow();
      rows.set(key, row);
      this.options.columns.forEach(([, , cell], column) => row.cells[column].set(cell(figure)));
      if (this.body.rows[index] !== row.element) {
        this.body.insertBefore(row.element, this.body.rows[index] ?? null);
      }
    });
    while (this.body.rows.length > figures.length) {
      this.body.lastElementChild.remove();
    }
    this.rows = rows;
  }

  makeRow() {
    const cells = this.options.columns.map(
      ([, className], column) => new Cell(column === 0 ? "th" : "td", className),
    );
    cells[0].element.scope = "row";
    const row = element("tr");
    row.append(...cells.map((cell) => cell.element));
    return { element: row, cells };
  }
}

function totalsOf(sample, figures) {
  const sum = (list, figure) =>
    list.some((each) => each[figure] !== null)
      ? list.reduce((total, each) => total + (each[figure] ?? 0), 0)
      : null;
  const busy = sum(figures.devices, "busy");
  return [
    ["Requests/s", rateText(sum(figures.models, "requestsPerSecond"))],
    ["Failed/s", rateText(sum(figures.models, "failuresPerSecond"))],
    ["Requests in flight", countText(sample.requests_in_flight)],
    ["Devices busy", percentText(busy === null ? null : busy / figures.devices.length)],
    ["Training steps/s", rateText(sum(figures.trainers, "stepsPerSecond"))],
    ["Jobs running", countText(sample.jobs === null ? null : (sample.job_counts.RUNNING ?? 0))],
  ];
}

const byId = (id) => document.getElementById(id);
let before = null; // The last sample.
let sections = [];
let timer = 0;
let reading = false;

function show(now) {
  const figures = figuresOf(now, before);
  before = now;
  setText(byId("server"), `${now.version}, up for ${durationText(now.uptime_seconds)}`);
  setText(byId("state"), now.ready ? "ready" : `not ready: ${now.reason}`);
  byId("state").className = now.ready ? "good" : "bad";
  const totals = byId("totals");
  totalsOf(now, figures).forEach(([name, text], index) => {
    if (!totals.children[index]) {
      const total = totals.appendChild(element("div"));
      total.append(element("dt", name), element("dd"));
    }
    setText(totals.children[index].lastElementChild, text);
  });
  for (const section of sections) {
    section.show(now, figures[section.options.id]);
  }
  setText(byId("updated"), new Date().toLocaleTimeString());
  byId("figures").hidden = byId("footer").hidden = false;
}

async function read() {
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  let reply;
  try {
    reply = await fetch("status.json", { cache: "no-store", credentials: "omit", signal });
  } catch (error) {
    const late = error.name === "TimeoutError";
    throw new Error(late ? `no reply within ${TIMEOUT_MS / 1000} s` : "it cannot be reached");
  }
  if (!reply.ok) {
    throw new Error(`HTTP status ${reply.status}: ${(await reply.text()).trim()}`);
  }
  return reply.json();
}

async function update() {
  clearTimeout(timer);
  reading = true;
  let problem = "";
  try {
    show(await read());
  } catch (error) {
    const since = before === null ? "" : ` since ${byId("updated").textContent}`;
    problem = `No figures from the server${since}, trying again (${error.message}).`;
    setText(byId("state"), "");
  }
  setText(byId("problem"), problem);
  byId("problem").hidden = problem === "";
  byId("figures").classList.toggle("old", problem !== "");
  reading = false;
  timer = setTimeout(updateIfVisible, INTERVAL_MS);
}

// Does not ask for figures that nobody sees.
function updateIfVisible() {
  if (!document.hidden && !reading) {
    update();
  }
}

document.title = `${location.host} – Braid`;
sections = SECTIONS.map((options) => new Section(options));
byId("figures").append(...sections.map((section) => section.element));
document.addEventListener("visibilitychange", updateIfVisible);
update();
