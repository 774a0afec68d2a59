// Queries Prometheus and turns its replies into Grafana's data frames.

import { createDataFrame, FieldType, renderLegendFormat } from '@grafana/data';

async function call(path, parameters) {
  const reply = await fetch(`/api/v1/${path}?${new URLSearchParams(parameters)}`);
  const body = await reply.json();
  if (body.status !== 'success') {
    throw new Error(body.error ?? `Prometheus replied ${reply.status}`);
  }
  return body.data;
}

// Values of `label` in the series that match `selector`, in natural order.
async function labelValues(selector, label, range) {
  const series = await call('series', { 'match[]': selector, start: range.start, end: range.end });
  const values = [...new Set(series.map((labels) => labels[label]).filter(Boolean))];
  return values.sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
}

// Replaces the dashboard's variables and Grafana's built-in ones in an expression.
function interpolate(text, variables, range) {
  const builtIn = {
    __interval: `${range.step}s`,
    __interval_ms: `${range.step * 1000}`,
    __rate_interval: `${range.rateInterval}s`,
    __range: `${range.end - range.start}s`,
    __range_s: `${range.end - range.start}`,
  };
  return text.replace(/\$\{(\w+)(?::\w+)?\}|\$(\w+)/g, (whole, a, b) => {
    const value = builtIn[a ?? b] ?? variables[a ?? b];
    if (value === undefined) {
      throw new Error(`unknown variable ${whole}`);
    }
    return value;
  });
}

// Returns the longest scrape interval of the active targets in seconds.
export async function readScrapeInterval() {
  const { activeTargets } = await call('targets', { state: 'active' });
  const units = { h: 3600, m: 60, s: 1, ms: 0.001 };
  const seconds = activeTargets.map(({ scrapeInterval }) =>
    [...scrapeInterval.matchAll(/(\d+)(ms|h|m|s)/g)].reduce((sum, [, n, unit]) => sum + n * units[unit], 0)
  );
  return Math.max(...seconds, 1);
}

// Returns the values of the query variables: the regular expression that stands for "All", as
// Grafana uses when nothing is selected. Fails if a variable has no value to choose from.
export async function readVariables(list, range) {
  const variables = { datasource: 'prometheus' };
  for (const variable of list.filter(({ type }) => type === 'query')) {
    const [, selector, label] = /^label_values\((.*),\s*(\w+)\)$/.exec(variable.query);
    const options = await labelValues(interpolate(selector, variables, range), label, range);
    if (options.length === 0) {
      throw new Error(`variable ${variable.name} has no values: ${variable.query}`);
    }
    variables[variable.name] = variable.allValue ?? options.join('|');
  }
  return variables;
}

function seriesName(target, metric) {
  if (target.legendFormat && target.legendFormat !== '__auto') {
    return renderLegendFormat(target.legendFormat, metric);
  }
  const { __name__: name = '', ...labels } = metric;
  return `${name}{${Object.entries(labels).map(([k, v]) => `${k}="${v}"`)}}`;
}

// One frame per series; gaps that are longer than a step become nulls.
function rangeFrames(target, result, range) {
  return result.map(({ metric, values }) => {
    const at = new Map(values.map(([time, value]) => [Math.round(time), Number(value)]));
    const times = [];
    for (let time = range.start; time <= range.end; time += range.step) {
      times.push(time);
    }
    return createDataFrame({
      refId: target.refId,
      fields: [
        { name: 'Time', type: FieldType.time, values: times.map((time) => time * 1000) },
        {
          name: 'Value',
          type: FieldType.number,
          labels: metric,
          values: times.map((time) => at.get(time) ?? null),
          config: { displayNameFromDS: seriesName(target, metric) },
        },
      ],
    });
  });
}

// A frame of an instant query: time, one column per label, and the value.
function tableFrame(target, result, many) {
  const labels = [...new Set(result.flatMap(({ metric }) => Object.keys(metric)))].sort();
  return createDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: result.map(({ value }) => value[0] * 1000) },
      ...labels.map((label) => ({
        name: label,
        type: FieldType.string,
        values: result.map(({ metric }) => metric[label] ?? ''),
      })),
      {
        name: many ? `Value #${target.refId}` : 'Value',
        type: FieldType.number,
        values: result.map(({ value }) => Number(value[1])),
      },
    ],
  });
}

// The frames of all targets of a panel.
export async function queryPanel(panel, variables, range) {
  const frames = [];
  for (const target of panel.targets ?? []) {
    const query = interpolate(target.expr, variables, range);
    if (target.format === 'table') {
      const { result } = await call('query', { query, time: range.end });
      frames.push(tableFrame(target, result, panel.targets.length > 1));
    } else {
      const { start, end, step } = range;
      const { result } = await call('query_range', { query, start, end, step });
      frames.push(...rangeFrames(target, result, range));
    }
  }
  return frames;
}
