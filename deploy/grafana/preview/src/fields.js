// Applies a panel's field settings and transformations, as Grafana does before it draws.

import {
  applyFieldOverrides,
  createTheme,
  FieldConfigOptionsRegistry,
  transformDataFrame,
  standardTransformersRegistry,
  standardTransformers,
} from '@grafana/data';
import { lastValueFrom } from 'rxjs';

export const theme = createTheme({ colors: { mode: 'dark' } });

const keep = (value) => value;
const standard = ['unit', 'decimals', 'min', 'max', 'displayName', 'noValue', 'color', 'mappings', 'thresholds'];
const custom = [
  'lineWidth', 'lineStyle', 'fillOpacity', 'showPoints', 'stacking', 'thresholdsStyle', 'axisSoftMax', 'align',
  'cellOptions', 'inspect', 'width',
];
const registry = new FieldConfigOptionsRegistry(() => [
  ...standard.map((id) => ({ id, path: id, name: id, process: keep, shouldApply: () => true })),
  ...custom.map((name) => ({
    id: `custom.${name}`, path: name, name, isCustom: true, process: keep, shouldApply: () => true,
  })),
]);

standardTransformersRegistry.setInit(() =>
  [standardTransformers.mergeTransformer, standardTransformers.organizeFieldsTransformer].map(
    (transformation) => ({ id: transformation.id, name: transformation.name, transformation })
  )
);

// Defaults that Grafana's own panel plugins set and that a dashboard may leave out.
const pluginDefaults = {
  timeseries: { drawStyle: 'line', lineInterpolation: 'linear', pointSize: 5, axisPlacement: 'auto', spanNulls: false },
};

export async function prepare(panel, frames) {
  const transformations = panel.transformations ?? [];
  const transformed = transformations.length
    ? await lastValueFrom(transformDataFrame(transformations, frames, { interpolate: keep }))
    : frames;
  const { defaults = {}, overrides = [] } = panel.fieldConfig ?? {};
  const color = { mode: panel.type === 'timeseries' ? 'palette-classic' : 'thresholds' };
  return applyFieldOverrides({
    data: transformed,
    fieldConfig: {
      defaults: { color, ...defaults, custom: { ...pluginDefaults[panel.type], ...defaults.custom } },
      overrides,
    },
    fieldConfigRegistry: registry,
    replaceVariables: keep,
    theme,
    timeZone: 'utc',
  });
}
