// Draws one panel's data with the component that Grafana uses for its type.

import { FieldType, getFieldDisplayValues, VizOrientation } from '@grafana/data';
import { BarGauge, BigValue, Table, TimeSeries, VizRepeater } from '@grafana/ui';
import { Heatmap, StateTimeline } from './plots';
import { theme } from './fields';

const keep = (value) => value;

function displayValues(panel, frames) {
  const { defaults = {}, overrides = [] } = panel.fieldConfig;
  return getFieldDisplayValues({
    fieldConfig: { defaults, overrides },
    reduceOptions: panel.options.reduceOptions,
    replaceVariables: keep,
    theme,
    data: frames,
    sparkline: panel.options.graphMode === 'area',
    timeZone: 'utc',
  });
}

function Stat({ panel, frames, width, height }) {
  const { options } = panel;
  const values = displayValues(panel, frames);
  return (
    <VizRepeater
      source={panel} width={width} height={height} getValues={() => values}
      orientation={options.orientation} itemSpacing={3} autoGrid={true} renderCounter={0}
      renderValue={({ value, width, height, count }) => (
        <BigValue
          value={value.display} sparkline={value.sparkline} count={count} width={width} height={height}
          theme={theme} colorMode={options.colorMode} graphMode={options.graphMode}
          justifyMode={options.justifyMode} textMode={options.textMode}
        />
      )}
    />
  );
}

function Bars({ panel, frames, width, height }) {
  const { options } = panel;
  const values = displayValues(panel, frames);
  return (
    <VizRepeater
      source={panel} width={width} height={height} getValues={() => values}
      orientation={options.orientation} itemSpacing={10} renderCounter={0}
      minVizHeight={options.minVizHeight} minVizWidth={options.minVizWidth}
      maxVizHeight={options.maxVizHeight}
      renderValue={({ value, width, height, orientation }) => (
        <BarGauge
          value={value.display} field={value.field} display={value.view?.getFieldDisplayProcessor(value.colIndex)}
          width={width} height={height} orientation={orientation ?? VizOrientation.Horizontal} theme={theme}
          itemSpacing={8} lcdCellWidth={8} displayMode={options.displayMode}
          showUnfilled={options.showUnfilled} valueDisplayMode={options.valueMode}
          namePlacement={options.namePlacement} text={options.text}
        />
      )}
    />
  );
}

function Series({ panel, frames, width, height, range }) {
  return (
    <TimeSeries
      frames={frames} width={width} height={height} timeRange={range} timeZone="utc"
      legend={panel.options.legend} options={panel.options} structureRev={1}
    />
  );
}

const drawings = {
  stat: Stat,
  bargauge: Bars,
  timeseries: Series,
  table: ({ panel, frames, width, height }) => (
    <Table data={frames[0]} width={width} height={height} cellHeight={panel.options.cellHeight} timeRange={undefined} />
  ),
  'state-timeline': StateTimeline,
  heatmap: Heatmap,
};

// Whether the frames hold at least one number that is not null.
export function hasData(frames) {
  return frames.some((frame) =>
    frame.fields.some(
      ({ type, values }) => type !== FieldType.time && values.some((value) => value !== null && value !== '')
    )
  );
}

export function Drawing(props) {
  const Type = drawings[props.panel.type];
  if (Type === undefined) {
    throw new Error(`no drawing for panels of type ${props.panel.type}`);
  }
  return <Type {...props} />;
}
