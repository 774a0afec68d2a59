// The two panel types that Grafana keeps outside of @grafana/ui, drawn with its plot and theme.

import { FieldType, getFieldDisplayName } from '@grafana/data';
import { LegendDisplayMode, measureText, UPlotChart, UPlotConfigBuilder, VizLegend, VizLayout } from '@grafana/ui';
import { theme } from './fields';

const fontSize = 12;

function timeAxis(builder, range) {
  builder.addScale({
    scaleKey: 'x',
    isTime: true,
    orientation: 0,
    direction: 1,
    range: () => [range.from.valueOf(), range.to.valueOf()],
  });
  builder.addAxis({ scaleKey: 'x', isTime: true, placement: 'bottom', timeZone: 'utc', theme });
}

// Names the rows from bottom to top: as many of them as there is room for.
function rowAxis(builder, names, height) {
  const every = Math.ceil((names.length * 1.5 * fontSize) / height);
  const shown = names.map((_, row) => row).filter((row) => row % every === 0);
  const width = Math.max(...names.map((name) => measureText(name, fontSize).width));
  builder.addScale({ scaleKey: 'y', isTime: false, orientation: 1, direction: 1, range: () => [0, names.length] });
  builder.addAxis({
    scaleKey: 'y',
    placement: 'left',
    theme,
    size: width + 18,
    splits: () => shown.map((row) => row + 0.5),
    values: () => shown.map((row) => names[row]),
    grid: { show: false },
  });
}

function Plot({ builder, data, width, height, range }) {
  return <UPlotChart config={builder} data={data} width={width} height={height} timeRange={range} />;
}

// Rows of colored intervals; equal neighbours are merged. The legend names the states.
export function StateTimeline(props) {
  const { width, height, panel } = props;
  const states = Object.values(panel.fieldConfig.defaults.mappings[0].options);
  const items = states.map(({ text, color }) => ({
    label: text, color: theme.visualization.getColorByName(color), yAxis: 1,
  }));
  const legend = (
    <VizLayout.Legend placement="bottom">
      <VizLegend items={items} displayMode={LegendDisplayMode.List} placement="bottom" />
    </VizLayout.Legend>
  );
  return (
    <VizLayout width={width} height={height} legend={legend}>
      {(plotWidth, plotHeight) => <States {...props} width={plotWidth} height={plotHeight} />}
    </VizLayout>
  );
}

function States({ frames, width, height, range }) {
  const fields = frames.map((frame) => frame.fields.find(({ type }) => type === FieldType.number));
  const times = frames[0].fields[0].values;
  const builder = new UPlotConfigBuilder('utc');
  timeAxis(builder, range);
  rowAxis(builder, fields.map((field, i) => getFieldDisplayName(field, frames[i])), height);
  fields.forEach(() => builder.addSeries({ scaleKey: 'y', theme, show: true, pathBuilder: () => null, lineWidth: 0, showPoints: 'never' }));
  builder.addHook('draw', (u) => {
    fields.forEach((field, row) => {
      const top = u.valToPos(row + 0.95, 'y', true);
      const bottom = u.valToPos(row + 0.05, 'y', true);
      for (let i = 0; i < times.length; ) {
        let next = i + 1;
        while (next < times.length && field.values[next] === field.values[i]) {
          next++;
        }
        if (field.values[i] !== null) {
          const left = u.valToPos(times[i], 'x', true);
          const right = u.valToPos(times[Math.min(next, times.length - 1)], 'x', true);
          u.ctx.fillStyle = field.display(field.values[i]).color;
          u.ctx.fillRect(left, top, Math.max(right - left, 1), bottom - top);
        }
        i = next;
      }
    });
  });
  const data = [times, ...fields.map((_, row) => times.map(() => row))];
  return <Plot builder={builder} data={data} width={width} height={height} range={range} />;
}

// Counts per time and bucket from Prometheus' cumulative buckets, on a scale of blues.
export function Heatmap({ frames, width, height, range }) {
  const buckets = frames
    .map((frame) => frame.fields[1])
    .filter((field) => field.labels.le !== undefined)
    .sort((a, b) => Number(a.labels.le.replace('+Inf', 'Infinity')) - Number(b.labels.le.replace('+Inf', 'Infinity')));
  const times = frames[0].fields[0].values;
  const step = times[1] - times[0];
  const counts = buckets.map((field, row) =>
    field.values.map((value, i) => Math.max((value ?? 0) - (row ? buckets[row - 1].values[i] ?? 0 : 0), 0))
  );
  const most = Math.max(...counts.flat(), 1e-9);
  const builder = new UPlotConfigBuilder('utc');
  timeAxis(builder, range);
  const display = buckets[0].display;
  rowAxis(builder, buckets.map(({ labels }) => {
    const bound = Number(labels.le);
    if (!Number.isFinite(bound)) {
      return '∞';
    }
    const { text, suffix } = display(bound);
    return `${text}${suffix ?? ''}`;
  }), height);
  buckets.forEach(() => builder.addSeries({ scaleKey: 'y', theme, show: true, pathBuilder: () => null, lineWidth: 0, showPoints: 'never' }));
  builder.addHook('draw', (u) => {
    counts.forEach((row, bucket) => {
      const top = u.valToPos(bucket + 1, 'y', true) + 1;
      const bottom = u.valToPos(bucket, 'y', true) - 1;
      row.forEach((count, i) => {
        if (count > 1e-9) {
          const left = Math.max(u.valToPos(times[i] - step, 'x', true), u.bbox.left);
          const right = u.valToPos(times[i], 'x', true) - 1;
          const share = Math.sqrt(count / most);
          u.ctx.fillStyle = `hsl(${210 - 10 * share} ${60 + 30 * share}% ${20 + 60 * share}%)`;
          u.ctx.fillRect(left, top, Math.max(right - left, 1), bottom - top);
        }
      });
    });
  });
  const data = [times, ...counts.map((row) => Array.from(row))];
  return <Plot builder={builder} data={data} width={width} height={height} range={range} />;
}
